"""A container's first process as this machine's kernel has it: held, so that its number can't become another's.

The first process of a PID namespace is dead only when all others in it are: the kernel kills and reaps them first. So
its end, and a cgroup without a process, prove what the engine notices a good while later.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from docker import APIClient

from runners.sandbox.backend import NotArmed

DEATH_SECONDS = 2.0
"""How long the end of a process that has said all is waited for."""


@dataclass(frozen=True)
class FirstProcess:
    """`handle` is a descriptor of the process, `cgroups` are its cgroup's folders."""

    handle: int
    cgroups: tuple[Path, ...]

    @classmethod
    @contextmanager
    def of(cls, client: APIClient, container: str) -> Iterator[FirstProcess]:
        """That of a running container. Raises NotArmed when it is not there, or not the container's."""
        pid = int(client.inspect_container(container)["State"]["Pid"])
        try:
            handle = os.pidfd_open(pid)
        except OSError as gone:
            raise NotArmed("the sandbox has ended already") from gone
        try:
            yield cls(handle, _cgroups(pid, container))
        finally:
            os.close(handle)

    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self._ends_within(0)

    def is_proved_dead(self) -> bool:
        """Wait for its end a moment; whether it has come, and nobody is left in its cgroup."""
        return self._ends_within(DEATH_SECONDS) and all(_is_empty(folder) for folder in self.cgroups)

    def _ends_within(self, seconds: float) -> bool:
        watch = select.poll()
        watch.register(self.handle, select.POLLIN)
        return bool(watch.poll(1000 * seconds))


def is_of(pid: int, container: str) -> bool:
    """Whether the process `pid` of this machine belongs to `container`."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _cgroups(pid: int, container: str) -> tuple[Path, ...]:
    """Raises NotArmed for a process that is not the container's."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if container in path:
            name = controllers.removeprefix("name=") if controllers else "."
            found += [Path("/sys/fs/cgroup", under, path.lstrip("/")) for under in (name, "unified")]
    there = tuple(folder for folder in dict.fromkeys(found) if folder.is_dir())
    if not there:
        raise NotArmed("the sandbox's first process is none of this machine's")
    return there


def _is_empty(folder: Path) -> bool:
    try:
        return not (folder / "cgroup.procs").read_text().strip()
    except OSError:
        return not folder.exists()
