"""The worker's side of a command's network: one process for one command, from before its sandbox to its end.

The process is started ahead, while the sandbox is being made, and let in once that is there and before its command is
sent. What it tells of requests is written down every second, and before the command's result is anybody's: what could
not be written down ends the step. The process has read what strangers sent, so what it tells is checked and bounded
here as well.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

import runners
from ledger.errors import PatchyardError, Temporary
from runners.sandbox.backend import EngineUnavailable, NoNetwork, SandboxBroken, SandboxLost
from runners.sandbox.egress.bounds import Bounds
from runners.sandbox.egress.entrance import Entrance
from runners.sandbox.egress.process import MESSAGE_BYTES
from runners.sandbox.spec import NetworkRequest, SandboxPlace, SandboxSpec
from runners.sandbox.wrapper import PROXY, STAGE_SECONDS

PROGRAM = "from runners.sandbox.egress.process import main; main()"
BOUNDS = Bounds()
LISTEN_SECONDS = 30.0
END_SECONDS = 15.0
WRITE_SECONDS = 1.0
SPARE_SECONDS = 60.0
_PASSED_ON = ("PATCHYARD_STACK", "PATCHYARD_SERVICE")
"""Variables that say whose process it is."""
_ROOM = str(Path(runners.__file__).resolve().parents[1])


class Notes(Protocol):
    """Where requests are written down: the registry of the backend."""

    def note_requests(self, place: SandboxPlace, requests: Sequence[NetworkRequest], left_out: int) -> None:
        """See `Registry.note_requests`."""
        ...


@contextmanager
def outlet_of(spec: SandboxSpec, notes: Notes) -> Iterator[Outlet | None]:
    """The network of this command for as long as the block lasts, None if it has none. Raises SandboxLost when it
    broke, and what `note_requests` does; nothing of it is left in any case."""
    if spec.network is None:
        yield None
        return
    outlet = Outlet(spec, notes, BOUNDS)
    try:
        yield outlet
    except BaseException:
        outlet.end_quietly()
        raise
    outlet.end()


class Outlet:
    """One command's. Used by one thread."""

    def __init__(self, spec: SandboxSpec, notes: Notes, bounds: Bounds) -> None:
        """Starts the process; nothing is open yet. Raises EngineUnavailable."""
        self._spec, self._notes = spec, notes
        self._bounds = bounds
        self._control, self._process = _start(_asked(spec, self._bounds))
        self._waiting: list[NetworkRequest] = []
        self._left_out: int | None = None
        self._told = 0
        self._why = ""
        self._broken: PatchyardError | None = None
        self._reader: threading.Thread | None = None

    def open(self, entrance: Entrance) -> None:
        """Let it in; the sandbox has its proxy on return. Raises NoNetwork, EngineUnavailable, SandboxBroken."""
        self._control.settimeout(LISTEN_SECONDS)
        try:
            socket.send_fds(self._control, [b"{}"], [entrance.first, entrance.namespace])
            said = json.loads(self._control.recv(MESSAGE_BYTES) or b"{}")
        except (OSError, ValueError) as lost:
            raise EngineUnavailable("the process that serves a sandbox's network does not answer") from lost
        if said.get("unfit"):
            raise NoNetwork(f"a network is not to be had here: {said['failed']}", remedy="run the worker as root")
        if "listens" not in said:
            raise SandboxBroken(f"the network of a sandbox cannot be opened: {said.get('failed', 'no reason given')}")
        self._control.settimeout(WRITE_SECONDS)
        self._reader = threading.Thread(target=self._read, name="egress", daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Close every connection and write down what is left to be. Raises SandboxLost, and what the notes raise."""
        self._stop()
        if self._broken is not None:
            raise self._broken
        if self._waiting or self._left_out:
            self._notes.note_requests(self._spec, self._waiting, self._left_out or 0)
        if self._left_out is None and self._reader is not None:
            raise SandboxLost(f"the process that served the sandbox's network ended before it had told all{self._why}")

    def end_quietly(self) -> None:
        """As `end`, where another error is on its way."""
        try:
            self.end()
        except PatchyardError:
            return

    def _stop(self) -> None:
        """The process is gone on return, and all that it said is known."""
        with suppress(OSError):  # it may be gone already
            self._control.shutdown(socket.SHUT_WR)
        try:
            if self._reader is None:
                self._process.kill()
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        self._control.close()

    def _read(self) -> None:
        """Take in what it tells, until it has told all or is gone."""
        written = time.monotonic()
        while True:
            try:
                message = self._control.recv(MESSAGE_BYTES)
            except TimeoutError:
                message = None
            except OSError:
                return
            if message is not None and not self._take(message):
                return
            if time.monotonic() - written >= WRITE_SECONDS:
                self._write()
                written = time.monotonic()

    def _take(self, message: bytes) -> bool:
        """Whether more may come."""
        if not message:
            return False
        try:
            said: dict[str, Any] = json.loads(message)
            if "left_out" in said:
                self._left_out = int(said["left_out"])
                return False
            if "broken" in said:
                self._why = f" ({said['broken']})"
                return False
            self._told += 1
            if self._told > self._bounds.approved + self._bounds.refused_told:
                raise ValueError("more than it may tell")
            self._waiting.append(NetworkRequest.model_validate(said["request"]))
        except (ValueError, KeyError, TypeError, ValidationError):
            self._break(SandboxBroken("the process that serves a sandbox's network says what it does not say"))
            return False
        return True

    def _write(self) -> None:
        """Write down what has come. A ledger that is away for a moment is asked again; what it refuses ends it all."""
        waiting = list(self._waiting)
        if not waiting or self._broken is not None:
            return
        try:
            self._notes.note_requests(self._spec, waiting, 0)
        except Temporary:
            return
        except PatchyardError as refused:
            self._break(refused)
            return
        del self._waiting[: len(waiting)]

    def _break(self, error: PatchyardError) -> None:
        self._broken = error
        self._process.kill()


def _asked(spec: SandboxSpec, bounds: Bounds) -> str:
    assert spec.network is not None  # noqa: S101  (there is no outlet otherwise)
    host, _, port = PROXY.rpartition("/")[2].partition(":")
    return json.dumps(
        {
            "allow": spec.network.allow,
            "private": spec.network.private,
            "host": host,
            "port": int(port),
            "bounds": asdict(bounds),
            # Longer than its sandbox can last, should nobody be there any more to end it.
            "lasts_seconds": spec.deadline_seconds + 2 * STAGE_SECONDS + SPARE_SECONDS,
        }
    )


def _start(asked: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = f"import sys; sys.path.insert(0, {_ROOM!r}); {PROGRAM}"
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", program, str(theirs.fileno()), asked],
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as refused:
            ours.close()
            raise EngineUnavailable(f"no process for a sandbox's network: {refused.strerror}") from refused
    return ours, process
