"""The process that starts runtimes, and is the parent of every sandbox's first process. It runs this file as a script.

Why a process of its own: a runtime leaves the container's first process to whoever adopts orphans, and only a parent
learns how a process ended, or can kill it without fear that its number is another's by now. It is small, so starting
programs from it is cheap. It has its own view of the mounts, made once: the images are read-only, for the runtimes
too, and of many cgroup hierarchies only those are there that bound a sandbox, since each costs time with every one. And
it outlives the worker by a moment: a worker that is killed takes its sandboxes along, since each has a channel to it
whose end is heard here.

Only the standard library is imported, so that it starts in a moment and depends on nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 4096, 8192, 16384, 1 << 19
MNT_DETACH = 2
PR_SET_CHILD_SUBREAPER = 36
MFD_EXEC = 0x10
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
CGROUPS = b"/sys/fs/cgroup"

MESSAGE_BYTES = 1 << 16
START_SECONDS = 60.0
"""What a runtime may take to start a container before it is killed."""
MOST_STRAYS = 1000


@dataclass
class Sandbox:
    """One that was asked for: its channel, the runtime that starts it, and then its first process."""

    channel: socket.socket
    pid_file: str
    runtime: int
    asked_at: float = field(default_factory=time.monotonic)
    first: int = 0
    doomed: bool = False


class Launcher:
    """Serves the worker at the other end of `control` until that is closed and no sandbox is left."""

    def __init__(self, control: socket.socket, programs: dict[str, str]) -> None:
        """`programs` says for some what to execute in their place."""
        self._control, self._programs = control, programs
        self._by_pid: dict[int, Sandbox] = {}
        self._strays: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._open = True

    def serve(self) -> None:
        """Until nobody needs it any more."""
        wakeups, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wakeups, selectors.EVENT_READ)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._control.send(b'{"ready": true}')
        while self._open or self._by_pid:
            for key, _ in self._selector.select(1.0 if self._by_pid else None):
                if key.fileobj is self._control:
                    self._take()
                elif isinstance(key.data, Sandbox):
                    self._doom(key.data)
                else:
                    os.read(wakeups, 4096)
            self._bury()
            self._end_overdue()

    def _take(self) -> None:
        """Start what is asked for; at the end of the control connection the worker is gone, or needs no more."""
        message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
        if not message:
            self._selector.unregister(self._control)
            self._open = False
            return
        if len(descriptors) < 4:  # we may have no more of them open; the other end hears that its channel is closed
            for descriptor in descriptors:
                os.close(descriptor)
            return
        asked = json.loads(message)
        channel = socket.socket(fileno=descriptors[3])
        try:
            runtime = _start(asked["argv"], self._programs.get(asked["argv"][0]), descriptors[:3])
        except OSError as refused:
            _say(channel, failed=f"{asked['argv'][0]}: {refused.strerror}")
            channel.close()
            return
        finally:
            for descriptor in descriptors[:3]:
                os.close(descriptor)
        sandbox = Sandbox(channel, asked["pid_file"], runtime)
        self._by_pid[runtime] = sandbox
        self._selector.register(channel, selectors.EVENT_READ, sandbox)

    def _doom(self, sandbox: Sandbox) -> None:
        """The worker wants it ended, or is gone itself. One that is being started dies when that is done."""
        self._selector.unregister(sandbox.channel)
        sandbox.doomed = True
        if sandbox.first:
            os.kill(sandbox.first, signal.SIGKILL)

    def _bury(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            sandbox = self._by_pid.pop(pid, None)
            if sandbox is None:
                self._strays[pid] = status
                if len(self._strays) > MOST_STRAYS:
                    del self._strays[next(iter(self._strays))]
            elif pid == sandbox.first:
                self._end(sandbox, ended=status)
            else:
                self._has_started(sandbox, status)

    def _has_started(self, sandbox: Sandbox, status: int) -> None:
        """The runtime has ended, and what it started is our child now, or has ended already."""
        if status != 0:
            self._end(sandbox, failed=f"status {os.waitstatus_to_exitcode(status)}")
            return
        try:
            with open(sandbox.pid_file, encoding="ascii") as file:
                sandbox.first = int(file.read())
        except (FileNotFoundError, ValueError):
            # Somebody has removed the sandbox already, and with it whatever ran in it.
            self._end(sandbox, failed="it was removed while it was started")
            return
        ended = self._strays.pop(sandbox.first, None)
        # Numbers come again: a stray of long ago may have had the one that this sandbox's first process has now.
        if ended is not None and not _is_child(sandbox.first):
            _say(sandbox.channel, started=sandbox.first)
            self._end(sandbox, ended=ended)
            return
        self._by_pid[sandbox.first] = sandbox
        _say(sandbox.channel, started=sandbox.first)
        if sandbox.doomed:
            os.kill(sandbox.first, signal.SIGKILL)

    def _end(self, sandbox: Sandbox, **outcome: int | str) -> None:
        _say(sandbox.channel, **outcome)
        if not sandbox.doomed:
            self._selector.unregister(sandbox.channel)
        sandbox.channel.close()

    def _end_overdue(self) -> None:
        overdue = time.monotonic() - START_SECONDS
        for sandbox in self._by_pid.values():
            if not sandbox.first and sandbox.asked_at < overdue:
                os.kill(sandbox.runtime, signal.SIGKILL)


def _start(argv: list[str], executable: str | None, streams: list[int]) -> int:
    """Start a program with these standard streams; its process id. `_bury` waits for it.

    Not by posix_spawn, which Popen would take if it had no descriptors to close: glibc's leaves two signals ignored,
    and every process of the sandbox would inherit that.
    """
    process = subprocess.Popen(
        argv,
        executable=executable,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        close_fds=True,
    )
    process.returncode = 0  # so that Popen leaves the waiting to us
    return process.pid


def _is_child(pid: int) -> bool:
    """Whether this process has a child of that number, alive or not yet waited for."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _say(channel: socket.socket, **what: int | str) -> None:
    try:
        channel.send(json.dumps(what).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return  # nobody is there to hear it


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def own_view(images: str, scratch: str, hierarchies: dict[str, list[str]]) -> None:
    """A mount namespace of our own: the images read-only, and of the cgroup hierarchies only those that are named, each
    under its names; with none named, all are left as they are. What others unmount still goes from here."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", None, b"/", None, MS_REC | MS_SLAVE, None)
    folder = os.fsencode(images)
    _call("mount", folder, folder, None, MS_BIND, None)
    _call("mount", None, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, None)
    if not hierarchies:
        return
    view = os.fsencode(scratch)
    _call("mount", b"cgroups", view, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=64k")
    for path, (name, *others) in hierarchies.items():
        os.mkdir(os.path.join(scratch, name))
        _call("mount", os.fsencode(path), os.path.join(view, os.fsencode(name)), None, MS_BIND, None)
        for other in others:
            os.symlink(name, os.path.join(scratch, other))
    _call("umount2", CGROUPS, MNT_DETACH)
    _call("mount", view, CGROUPS, None, MS_MOVE, None)


def sealed_copy(program: str) -> str | None:
    """A path to a copy of `program` in memory that nobody can change; None where the kernel does not let us have one.

    crun and runc make such a copy of themselves at each start and execute it, since a container that got hold of the
    program's file could overwrite it (CVE-2019-5736). They see that they are one already, and go on at once.
    """
    for flags in (MFD_EXEC, 0):
        try:
            descriptor = os.memfd_create(program, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError:
            continue
        if os.fstat(descriptor).st_mode & 0o111:
            break
        os.close(descriptor)
    else:
        return None
    with open(program, "rb") as original, open(descriptor, "wb", closefd=False) as copy:
        shutil.copyfileobj(original, copy)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def take_no_signals() -> None:
    """Whoever ends the worker softly lets its sandboxes end first, and this process goes when they have.

    A signal that is ignored or blocked would be so in every sandbox, and the worker may have been started like that:
    so all are at their default, and those that come are taken and forgotten.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, lambda *_: None)


def main() -> None:
    """The process: descriptor of the control connection, and what `Launcher` on the other side says of this machine."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    asked = json.loads(sys.argv[2])
    take_no_signals()
    try:
        _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        own_view(asked["images"], asked["scratch"], asked["hierarchies"])
        copies = {program: sealed_copy(program) for program in asked["seal"]}
    except OSError as refused:
        control.send(json.dumps({"unfit": f"{refused.filename}: {refused.strerror}"}).encode())
        return
    Launcher(control, {program: copy for program, copy in copies.items() if copy}).serve()


if __name__ == "__main__":
    main()
