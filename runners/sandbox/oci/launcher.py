"""The worker's side of the process that starts runtimes: one a backend, started when it is first needed.

Each sandbox has a channel of its own: over it comes when it has started and how it ended, and closing it kills the
sandbox. So whatever becomes of the worker, its sandboxes do not outlive it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.errors import Unfit
from runners.sandbox.backend import EngineUnavailable, SandboxLost
from runners.sandbox.oci import launcher_process

_PASSED_ON = ("PATH", "PATCHYARD_STACK", "PATCHYARD_SERVICE")
"""Variables for the launcher; the last two say whose process it is. Runtimes and sandboxes see none but PATH."""
_READY_SECONDS = 20.0
_CLOSE_SECONDS = 10.0


class StartFailed(EngineUnavailable):
    """The runtime could not start a sandbox."""


@dataclass
class Channel:
    """What the launcher says of one sandbox. `status` is the wait status of its first process, once it has ended."""

    socket: socket.socket
    status: int | None = None
    pid: int | None = None
    _killed: bool = field(default=False, init=False)

    def fileno(self) -> int:
        """For selectors: something was said."""
        return self.socket.fileno()

    def wait_started(self, timeout_seconds: float) -> None:
        """Returns when the first process runs. Raises StartFailed, SandboxLost."""
        until = time.monotonic() + timeout_seconds
        while self.pid is None:
            self.socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                self.receive()
            except TimeoutError:
                raise StartFailed("the runtime did not start a sandbox in time") from None
        self.socket.setblocking(False)

    def receive(self) -> None:
        """Take the next message, if there is one."""
        try:
            data = self.socket.recv(launcher_process.MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            raise SandboxLost("the process that starts sandboxes was ended")
        said: dict[str, Any] = json.loads(data)
        if "failed" in said:
            raise StartFailed(f"the runtime could not start a sandbox ({said['failed']})")
        self.pid = said.get("started", self.pid)
        self.status = said.get("ended")

    def kill(self) -> None:
        """Kill the sandbox; how it ended is still heard."""
        if not self._killed:
            self._killed = True
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give the channel back, which kills the sandbox if it runs."""
        self.socket.close()


class Launcher:
    """Starts runtimes in a process that sees `images` read-only, and of this machine's cgroup `hierarchies` (names by
    path) only these; without any, all. The programs `seal` are executed from a copy that nobody can change.

    `scratch` is an empty folder, for that process to mount something on.
    """

    def __init__(
        self, images: Path, scratch: Path, hierarchies: Mapping[Path, Sequence[str]], seal: Sequence[str]
    ) -> None:
        asked = {
            "images": str(images),
            "scratch": str(scratch),
            "hierarchies": {str(path): list(names) for path, names in hierarchies.items()},
            "seal": list(seal),
        }
        self._asked = json.dumps(asked)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process, if one was started."""
        return self._process.pid if self._process else None

    def launch(self, argv: list[str], pid_file: Path, streams: Sequence[int]) -> Channel:
        """Have `argv` started with the descriptors `streams` for its standard streams, which stay the caller's too.

        Raises Unfit, EngineUnavailable.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        message = json.dumps({"argv": argv, "pid_file": str(pid_file)}).encode()
        with theirs:
            try:
                self._send(message, [*streams, theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return Channel(ours)

    def close(self) -> None:
        """End the process, which ends when no sandbox is left."""
        with self._lock:
            self._end()

    def _send(self, message: bytes, descriptors: list[int]) -> None:
        for attempt in range(2):
            with self._lock:
                control = self._control or self._start()
            try:
                socket.send_fds(control, [message], descriptors)
            except OSError as broken:
                if attempt:
                    raise EngineUnavailable("the process that starts sandboxes does not answer") from broken
                with self._lock:
                    if self._control is control:
                        self._end()
            else:
                return

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher_process.__file__, str(theirs.fileno()), self._asked],
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(_READY_SECONDS)
        try:
            said = json.loads(ours.recv(launcher_process.MESSAGE_BYTES) or b"{}")
        except TimeoutError:
            said = {}
        ours.settimeout(None)
        if "ready" not in said:
            self._end()
            raise Unfit(
                f"no process that starts sandboxes can be had here ({said.get('unfit', 'it ended')})",
                remedy="run as root, or use a container engine: PATCHYARD_SANDBOX_BACKEND=docker",
            )
        return ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
