"""Which processes belong to a stack, and how they are ended for good.

Every process that a stack starts carries the stack's folder and its service's name in its environment, and hands both
down to what it starts itself. So they are found by asking the kernel, whatever pid files say, also when the supervisor
was killed between starting a process and writing that down.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

STACK_TAG = "PATCHYARD_STACK"
SERVICE_TAG = "PATCHYARD_SERVICE"
SUPERVISOR = "supervisor"


@dataclass(frozen=True)
class StackProcess:
    """A living process of a stack. `started` is the kernel's clock tick of its start."""

    pid: int
    service: str
    parent: int
    group: int
    session: int
    started: int
    command: str

    def leads_as(self, argv: Sequence[str]) -> bool:
        """Whether it is what the supervisor started with `argv`: each service gets a session of its own.

        Only the arguments are compared, since a script's command line has its interpreter first.
        """
        return self.session == self.pid and self.command.endswith(" ".join(argv[1:]))


def tags(home: Path, service: str) -> dict[str, str]:
    """The variables that mark a process as `service` of the stack in `home`."""
    return {STACK_TAG: str(home), SERVICE_TAG: service}


def stack_processes(home: Path, data_folders: Iterable[Path] = ()) -> list[StackProcess]:
    """The living processes of the stack in `home`, oldest first.

    A PostgreSQL backend writes its title over its environment; those are known by their program and their
    working folder, one of `data_folders`.
    """
    marks = {f"{STACK_TAG}={home}".encode()}
    folders = {str(folder) for folder in data_folders}
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            process = _examine(int(entry.name), marks, folders)
            if process is not None:
                found.append(process)
    return sorted(found, key=lambda process: process.started)


def by_service(processes: Iterable[StackProcess], service: str) -> StackProcess | None:
    """The first process of `service`: the one that none of its others has started.

    A process that was forked and has not yet become its program looks like its parent.
    """
    own = [process for process in processes if process.service == service]
    pids = {process.pid for process in own}
    return next((process for process in own if process.parent not in pids), None)


def is_alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie does not."""
    try:
        return _stat(pid)[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class Ending:
    """How the process `pid` is asked to end, and how long it has before it is killed."""

    pid: int
    stop_signal: int
    stop_seconds: float


def end_all(endings: Iterable[Ending]) -> None:
    """Ask all at once, then kill what has not ended in its time; returns when all are dead."""
    with ExitStack() as descriptors:
        asked = []
        for ending in endings:
            with suppress(ProcessLookupError):
                fd = os.pidfd_open(ending.pid)
                descriptors.callback(os.close, fd)
                signal.pidfd_send_signal(fd, ending.stop_signal)
                asked.append((fd, time.monotonic() + ending.stop_seconds))
        for fd, until in asked:
            if not wait_for_exit(fd, until - time.monotonic()):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                wait_for_exit(fd, 10)


def wait_for_exit(pidfd: int, timeout_seconds: float) -> bool:
    """Whether the process of `pidfd` was dead before the time was over."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    deadline = time.monotonic() + timeout_seconds
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            return True
    return bool(poll.poll(0))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (proc(5), field 3); the name before may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _examine(pid: int, marks: set[bytes], folders: set[str]) -> StackProcess | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if marks.isdisjoint(variables):
            if not folders or os.readlink(f"/proc/{pid}/cwd") not in folders:
                return None
            if not os.readlink(f"/proc/{pid}/exe").endswith("/postgres"):
                return None
            service = "postgres"
        else:
            prefix = f"{SERVICE_TAG}=".encode()
            values = [value for value in variables if value.startswith(prefix)]
            service = values[0][len(prefix) :].decode(errors="replace") if values else ""
        fields = _stat(pid)
        if fields[0] in ("Z", "X"):
            return None
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return StackProcess(pid, service, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), command)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
