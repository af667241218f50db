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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
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
        facts = {}
        for fact in _V2_FACTS if self.version == 2 else _V1_FACTS:
            controller, _, file = fact.rpartition("/")
            with suppress(OSError):
                text = (ROOT / controller / self.parent / name / file).read_text()
                facts[f"cgroup:{fact}"] = " ".join(text.split())
        return facts

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

    def remove_parent(self) -> None:
        """Remove the cgroup of all sandboxes, if it is empty and nobody makes use of it."""
        for root in self.hierarchies:
            with suppress(OSError):
                (root / self.parent).rmdir()

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
    return Cgroups(1, tuple(dict.fromkeys(_mounted())), parent)


def hybrid_mount() -> Path | None:
    """Where a host of version 1 has version 2 mounted too, which some runtimes refuse to see."""
    unified = ROOT / "unified"
    return unified if (unified / "cgroup.procs").exists() else None


def counts_swap() -> bool:
    """Whether swap can be limited here. Where it is not counted, naming a limit would fail the start."""
    if (ROOT / "cgroup.controllers").exists():
        return True
    return (ROOT / "memory" / "memory.memsw.limit_in_bytes").exists()


def _mounted() -> Iterator[Path]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields, _, tail = line.partition(" - ")
            point = fields.split()[4]
            if tail.startswith(("cgroup ", "cgroup2 ")) and point.startswith(f"{ROOT}/"):
                yield Path(point)


def _tree(folder: Path) -> Iterator[Path]:
    """The folder and all below it, the outer before the inner."""
    yield folder
    for root, names, _ in os.walk(folder):
        for inner in names:
            yield Path(root, inner)
