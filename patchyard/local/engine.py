"""The container engine of a local stack: one that is there already, or a private one that leaves nothing behind.

A private engine is a dockerd with every folder, socket and cgroup of its own, without a bridge and without a firewall
rule, so that it can stand beside any other engine and can be taken away whole. It is run by whoever supervises
processes; what a killed one leaves (containers, shims, mounts, sockets, cgroups) is found by the names it was given
here, and `remove_remains` ends with the proof that none of it is left.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ledger.errors import Temporary, Unfit
from patchyard.local.engine_runtimes import engine_runtimes

DEFAULT_HOST = "unix:///var/run/docker.sock"
HOST_VARIABLES = ("PATCHYARD_DOCKER_HOST", "DOCKER_HOST")
REMEDY = (
    "as root: apt-get install docker.io, and patchyard starts an engine of its own; else start one, or set DOCKER_HOST"
)

_SHORT_PATH_BYTES = 40
_RUN = Path("/run")
_CGROUPS = Path("/sys/fs/cgroup")
_PING_SECONDS = 2.0


class EngineSilent(Temporary):
    """The container engine does not answer."""


def find_engine(environ: Mapping[str, str] = os.environ) -> str | None:
    """The address of an engine that answers: the one a variable names, else the system's; None when there is none.

    Raises Unfit when a variable names one that does not answer: what was asked for is not silently replaced.
    """
    for name in HOST_VARIABLES:
        if host := environ.get(name):
            if answers(host):
                return host
            raise Unfit(f"{name}={host}: no container engine answers there", remedy=f"start it, or unset {name}")
    return DEFAULT_HOST if answers(DEFAULT_HOST) else None


def answers(host: str, timeout_seconds: float = _PING_SECONDS) -> bool:
    """Whether an engine answers a ping at `host` (`unix:///path`, `tcp://host:port`, `http://host:port`)."""
    try:
        connection = _connection(host, timeout_seconds)
    except ValueError:
        return False
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_answers(host: str, timeout_seconds: float) -> None:
    """Returns when the engine at `host` answers; raises EngineSilent when it has not after `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    while not answers(host):
        if time.monotonic() > deadline:
            raise EngineSilent(f"no container engine answered at {host} within {timeout_seconds:g} s")
        time.sleep(0.05)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(host: str, timeout_seconds: float) -> http.client.HTTPConnection:
    address = urlsplit(host)
    if address.scheme == "unix":
        return _UnixConnection(address.path, timeout_seconds)
    if address.scheme in ("tcp", "http") and address.hostname:
        return http.client.HTTPConnection(address.hostname, address.port or 2375, timeout=timeout_seconds)
    raise ValueError(host)


@dataclass(frozen=True)
class PrivateEngine:
    """One dockerd of our own. `folder` keeps its images, `run` its sockets. Their paths must be short: where that of
    `folder` is not, `run` lies elsewhere, and `folder`/run leads there."""

    folder: Path
    run: Path
    argv: tuple[str, ...]

    @property
    def host(self) -> str:
        """The address for clients, and the value of DOCKER_HOST."""
        return f"unix://{self.run}/engine.sock"

    @property
    def pid_file(self) -> Path:
        return self.run / "engine.pid"

    @property
    def _link(self) -> Path:
        return self.folder / "run"

    @property
    def cgroup(self) -> str:
        """The name of the cgroup, in every hierarchy, that all of its containers are in."""
        return f"patchyard-{_mark(self.folder)}"

    def prepare(self) -> None:
        """Make the folders. Needed before each start; a dead predecessor's pid file, which could name another
        process by now, is taken away."""
        for folder in (self.folder, self.run):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        if self._link != self.run and not self._link.is_symlink():
            self._link.symlink_to(self.run)
        # Without this file the settings of the system's engine would be read.
        (self.folder / "engine.json").write_text(json.dumps({"runtimes": engine_runtimes(self.folder)}))
        if self.pid() is None:
            self.pid_file.unlink(missing_ok=True)

    def pid(self) -> int | None:
        """The process id of this very engine, if it runs."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if str(self.folder / "data") in _command_line(pid) else None

    def stop(self, timeout_seconds: float = 20.0) -> None:
        """End the engine with all of its containers, and remove what remains. Its images are kept."""
        if (pid := self.pid()) is not None:
            _end(pid, timeout_seconds)
        self.remove_remains()

    def remove_remains(self, timeout_seconds: float = 10.0) -> None:
        """Take away what an engine that was killed has left behind. The engine must not run.

        Raises EngineSilent, naming what is left, when that did not succeed within `timeout_seconds`.
        """
        deadline = time.monotonic() + timeout_seconds
        while left := self._remains():
            if time.monotonic() > deadline:
                raise EngineSilent(f"the engine in {self.folder} left {', '.join(left)}")
            self._remove_once()
            time.sleep(0.02)
        shutil.rmtree(self.run, ignore_errors=True)
        if self._link.is_symlink():
            self._link.unlink()

    def remove(self) -> None:
        """Stop the engine and delete its images too."""
        self.stop()
        shutil.rmtree(self.folder)

    def _remove_once(self) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for mount in self._mounts():
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        for group in _cgroup_folders(self.cgroup):
            for inner in sorted(group.rglob("*"), key=lambda path: len(path.parts), reverse=True):
                if inner.is_dir():
                    with suppress(OSError):
                        inner.rmdir()
            with suppress(OSError):
                group.rmdir()

    def _remains(self) -> list[str]:
        left = [f"process {pid}" for pid in self._processes()]
        left += [f"mount {mount}" for mount in self._mounts()]
        return left + [f"cgroup {group}" for group in _cgroup_folders(self.cgroup)]

    def _processes(self) -> list[int]:
        """Its containerd and shims, known by their command lines, and its containers', known by their cgroup."""
        ours = f"{self.run}/exec/"
        programs = [pid for pid in _all_processes() if _is_engine_part(_command_line(pid), ours)]
        return programs + list(_cgroup_processes(self.cgroup))

    def _mounts(self) -> list[str]:
        """Mount points below its folders, the innermost first."""
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        points = [_unescaped(line.split()[4]) for line in lines]
        roots = (f"{self.folder}/", f"{self.run}/")
        return sorted((point for point in points if point.startswith(roots)), key=len, reverse=True)


def private_engine(folder: Path) -> PrivateEngine:
    """Describe a private engine that keeps its images in `folder`; nothing is started.

    Raises Unfit when this machine has no dockerd, or we are not root.
    """
    program = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise Unfit("no container engine answers, and there is no dockerd to start", remedy=REMEDY)
    if os.geteuid() != 0:
        raise Unfit("no container engine answers, and only root can start one", remedy=REMEDY)
    folder = folder.resolve()
    run = folder / "run" if len(os.fsencode(folder)) <= _SHORT_PATH_BYTES else _RUN / f"patchyard-{_mark(folder)}"
    argv = (
        program,
        "--config-file", str(folder / "engine.json"),
        "--data-root", str(folder / "data"),
        "--exec-root", str(run / "exec"),
        "--pidfile", str(run / "engine.pid"),
        "--host", f"unix://{run}/engine.sock",
        "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
        "--exec-opt", "native.cgroupdriver=cgroupfs",
        "--cgroup-parent", f"/patchyard-{_mark(folder)}",
        "--live-restore=false", "--shutdown-timeout=5", "--log-level=warn",
    )  # fmt: skip
    return PrivateEngine(folder=folder, run=run, argv=argv)


def _mark(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]


def _end(pid: int, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while _command_line(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _all_processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _command_line(pid: int) -> str:
    """The arguments of a process, separated by spaces; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="surrogateescape")
    except OSError:
        return ""


def _is_engine_part(command_line: str, exec_root: str) -> bool:
    program = os.path.basename(command_line.split(" ", 1)[0])
    return program.startswith(("containerd", "docker")) and exec_root in command_line


def _cgroup_folders(name: str) -> list[Path]:
    """The cgroup in the unified hierarchy, or in each of the old ones."""
    return [path for path in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if path.is_dir()]


def _cgroup_processes(name: str) -> set[int]:
    found: set[int] = set()
    for folder in _cgroup_folders(name):
        for path in folder.rglob("cgroup.procs"):
            with suppress(OSError):
                found.update(int(pid) for pid in path.read_text().split())
    return found


def _unescaped(mount_point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(code, character)
    return mount_point
