"""A `patchyard` command whose crash points also count, or stop it: `python -m tests.chaos.process worker …`.

With `CHAOS_PASSINGS=FILE` each passing of a crash point is a line in that file: the point and, where it is known, the
kind of the step. With `CHAOS_STOP=NAME[:NTH]` the process stops itself (SIGSTOP) at that passing, once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import structlog

from ledger import faults

PASSINGS, STOP = "CHAOS_PASSINGS", "CHAOS_STOP"
_UNTIL_STOPPED_SECONDS = 0.2


class _Watched:
    """Stands in for `crash_point`, and calls it."""

    def __init__(self, passings: str, stop: str) -> None:
        self._file = Path(passings) if passings else None
        name, _, nth = stop.partition(":")
        self._name, self._nth = name, int(nth or 1)
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._kill = faults.crash_point

    def __call__(self, name: str) -> None:
        with self._lock:
            self._seen[name] += 1
            due = name == self._name and self._seen[name] == self._nth
            if self._file is not None:
                kind = structlog.contextvars.get_contextvars().get("kind", "")
                with self._file.open("a") as file:
                    file.write(f"{name} {kind}\n")
        if due:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(_UNTIL_STOPPED_SECONDS)  # another thread may take the signal, and this one go on meanwhile
        self._kill(name)


def main() -> None:
    """Arms the points before anybody has taken them, and becomes the command."""
    passings, stop = os.environ.get(PASSINGS, ""), os.environ.get(STOP, "")
    if passings or stop:
        faults.crash_point = _Watched(passings, stop)  # type: ignore[assignment]
    from patchyard.cli import main as command

    command()


if __name__ == "__main__":
    main()
