"""The cgroups of sandboxes, looked at from outside: what the kernel counted, who is in one, and that it is gone.

The kernel removes a cgroup only when no process is left in it, and no process of a sandbox can leave its own. So a
cgroup that could be removed is the proof that all of the sandbox's processes are dead, whatever they called themselves.

Both kinds of hosts are served: version 2 with its one hierarchy, version 1 with one for each controller, and the
hybrid of both, which counts as version 1.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_BOUNDS = {"memory", "pids", "cpu", "devices"}
"""The controllers that bound a sandbox."""
_V2_FACTS = ("memory.events", "memory.peak", "pids.events")
_V1_FACTS = (
    "memory/memory.oom_control", "memory/memory.max_usage_in_bytes", "memory/memory.failcnt", "pids/pids.events",
)  # fmt: skip


@dataclass(frozen=True)
class Cgroups:
    """The hierarchies of this host. `parent` is the cgroup that holds every sandbox's, in each of them."""

    version: int
    hierarchies: tuple[Path, ...]
    parent: str

    def path(self, name: str) -> str:
        """What a runtime is told, from the root of each hierarchy."""
        return f"/{self.parent}/{name}"

    def folders(self, name: str) -> list[Path]:
        """Where the cgroup `name` is still there."""
        return [folder for root in self.hierarchies if (folder := root / self.parent / name).is_dir()]

    def facts(self, name: str) -> dict[str, str]:
        """What the kernel counted, one line each, by the names that the first process inside would give them."""
        files = _V2_FACTS if self.version == 2 else _V1_FACTS
        return {f"cgroup:{file}": text for file in files if (text := self._read(name, file))}

    def bounds(self, name: str) -> tuple[str, str]:
        """The limits of memory and of processes as the kernel has them; empty where there are none to read."""
        files = ("memory.max", "pids.max") if self.version == 2 else ("memory/memory.limit_in_bytes", "pids/pids.max")
        memory, pids = (self._read(name, file) for file in files)
        return memory, pids

    def processes(self, name: str) -> set[int]:
        """The processes in the cgroup `name` or in one below it, zombies not counted."""
        found: set[int] = set()
        for folder in self.folders(name):
            for inner in _tree(folder):
                with suppress(OSError):
                    found.update(int(pid) for pid in (inner / "cgroup.procs").read_text().split())
        return found

    def kill(self, name: str) -> int:
        """Kill what is in the cgroup `name` now; how many there were."""
        pids = self.processes(name)
        for pid in pids:
            with suppress(OSError):
                # Its number might be another's by now: it is killed only if, once held, it is still in there.
                descriptor = os.pidfd_open(pid)
                try:
                    if self._is_in(pid, name):
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
        return len(pids)

    def remove(self, name: str, timeout_seconds: float) -> bool:
        """Remove the cgroup `name` everywhere, killing what is in it; whether it is gone."""
        until = time.monotonic() + timeout_seconds
        while not self._remove_once(name):
            if time.monotonic() > until:
                return False
            self.kill(name)
            time.sleep(0.005)
        return True

    def names(self) -> set[str]:
        """Of the sandboxes that have a cgroup."""
        parents = [root / self.parent for root in self.hierarchies]
        return {inner.name for parent in parents if parent.is_dir() for inner in parent.iterdir() if inner.is_dir()}

    def remove_parent(self) -> None:
        """Remove the cgroup of all sandboxes, if it is empty. Nobody may be starting one."""
        for root in self.hierarchies:
            with suppress(OSError):
                (root / self.parent).rmdir()

    def _read(self, name: str, file: str) -> str:
        controller, _, last = file.rpartition("/")
        root = self.hierarchies[0] if self.version == 2 else ROOT
        try:
            return " ".join((root / controller / self.parent / name / last).read_text().split())
        except OSError:
            return ""

    def _is_in(self, pid: int, name: str) -> bool:
        path = self.path(name)
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        return any(line.endswith(path) or f"{path}/" in line for line in lines)

    def _remove_once(self, name: str) -> bool:
        gone = True
        for root in self.hierarchies:
            folder = root / self.parent / name
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
                for inner in reversed(list(_tree(folder))):
                    with suppress(OSError):
                        inner.rmdir()
        return gone


def read_cgroups(parent: str) -> Cgroups:
    """Those of this host, as they are mounted below /sys/fs/cgroup."""
    if (ROOT / "cgroup.controllers").exists():
        return Cgroups(2, (ROOT,), parent)
    return Cgroups(1, tuple(dict.fromkeys(point for point, _ in _mounted())), parent)


def needed_hierarchies(*, all_of_them: bool = False) -> dict[Path, list[str]]:
    """Where version 1 has a hierarchy for each controller: those that bound a sandbox, with the names of their folders.

    A runtime makes a cgroup in all that it sees, which is most of the time that it takes. And crun refuses to work
    where it sees version 2 beside them. None on a host of version 2, which has but one.
    """
    if (ROOT / "cgroup.controllers").exists():
        return {}
    needed = {}
    for point, controllers in _mounted():
        if controllers & _BOUNDS or (all_of_them and point.name != "unified"):
            needed[point] = list(dict.fromkeys((point.name, *point.name.split(","))))
    return needed


def other_hierarchies(needed: Container[Path]) -> tuple[str, ...] | None:
    """The hierarchies of version 1 that are not among the `needed`: in those a sandbox has no cgroup of its own, and
    would see this machine's whole tree. None on a host of version 2."""
    if (ROOT / "cgroup.controllers").exists():
        return None
    return tuple(str(point) for point, _ in _mounted() if point not in needed)


def counts_swap() -> bool:
    """Whether swap can be limited here. Where it is not counted, naming a limit would fail the start."""
    if (ROOT / "cgroup.controllers").exists():
        return True
    return (ROOT / "memory" / "memory.memsw.limit_in_bytes").exists()


def _mounted() -> Iterator[tuple[Path, set[str]]]:
    """Each hierarchy's mount point, and the controllers that are in it."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields, _, tail = line.partition(" - ")
            point = fields.split()[4]
            if tail.startswith(("cgroup ", "cgroup2 ")) and point.startswith(f"{ROOT}/"):
                yield Path(point), set(tail.split()[-1].split(","))


def _tree(folder: Path) -> Iterator[Path]:
    """The folder and all below it, the outer before the inner."""
    yield folder
    for root, names, _ in os.walk(folder):
        for inner in names:
            yield Path(root, inner)
