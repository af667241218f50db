"""Named places where a process can be made to die, so that recovery is tested where it matters.

With `PATCHYARD_CRASH_POINTS=1`, `PATCHYARD_CRASH=name[:nth]` kills this process with SIGKILL at the nth passing of that
point (1 when not given). Without it `crash_point` is a function that does nothing.
"""

from __future__ import annotations

import os
import signal
import threading

CRASH_POINTS = (
    "claim.after",
    "decide.after_model",
    "act.before_intent",
    "act.after_intent",
    "act.after_effect",
    "sandbox.after_register",
    "sandbox.after_create",
    "sandbox.after_start",
    "sandbox.after_listen",
    "sandbox.after_arm",
    "sandbox.after_bind",
    "sandbox.after_exit",
    "publish.after_intent",
    "publish.after_effect",
    "complete.before_commit",
    "complete.after_commit",
    "dispatch.after_send",
)


def _nothing(_name: str) -> None:
    return


def _armed(spec: str) -> tuple[str, int]:
    name, _, nth = spec.partition(":")
    if name not in CRASH_POINTS or (nth and (not nth.isdigit() or int(nth) < 1)):
        known = ", ".join(CRASH_POINTS)
        raise SystemExit(f"PATCHYARD_CRASH={spec}: no such crash point; use NAME or NAME:NTH with one of {known}")
    return name, int(nth or 1)


class _Killer:
    def __init__(self, name: str, nth: int) -> None:
        self._name, self._left, self._lock = name, nth, threading.Lock()

    def __call__(self, name: str) -> None:
        if name != self._name:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("PATCHYARD_CRASH_POINTS") == "1" and os.environ.get("PATCHYARD_CRASH"):
    crash_point = _Killer(*_armed(os.environ["PATCHYARD_CRASH"]))
else:
    crash_point = _nothing  # type: ignore[assignment]
