"""Removing all that a sandbox was, and the proof that nothing of it is left.

Nothing is asked of the runtime that made it: its own record is a folder of ours, the processes are in a cgroup of a
known name, and mounts went with the last process. So what any worker, and any runtime, left behind in whatever state
is removed and proved gone in the same way.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ledger.records.base import Record
from runners.sandbox.oci.cgroups import Cgroups, read_cgroups
from runners.sandbox.oci.places import Labels, Places

GONE_SECONDS = 20.0


class Remains(Record):
    """What was looked for after a removal. The kernel lets go of a cgroup only when its processes are dead."""

    cgroup: Literal["removed", "still there"]
    folders: Literal["removed", "still there"]
    mounts: int

    @property
    def gone(self) -> bool:
        """Whether this proves that nothing is left."""
        return self.cgroup == self.folders == "removed" and self.mounts == 0


def remove(places: Places, cgroups: Cgroups, labels: Labels, mounts_of: int | None = None) -> Remains:
    """Kill and remove a sandbox whose runtime is not at work any more, and look what is left of it.

    `mounts_of` is the process whose view of the mounts is looked at beside our own.
    """
    cgroup_gone = cgroups.remove(labels.name, GONE_SECONDS)
    folders = [*(folder / labels.name for folder in _entries(places.states)), places.sandbox(labels)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    left = [folder for folder in folders if folder.exists()]
    points = [point for pid in ("self", mounts_of) if pid for point in _mount_points(pid)]
    return Remains(
        cgroup="removed" if cgroup_gone else "still there",
        folders="removed" if not left else "still there",
        mounts=sum(f"{point}/".startswith(f"{folder}/") for point in points for folder in folders),
    )


def stop_runtimes(places: Places, labels: Labels) -> int:
    """Kill the runtimes that are at work on a sandbox now, and see that no other can begin; how many there were.

    The bundle is taken away first: a runtime that reads it after that finds nothing to start.
    """
    folder = places.sandbox(labels)
    (folder / "config.json").unlink(missing_ok=True)
    mark = os.fsencode(folder)
    killed = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            descriptor = os.pidfd_open(int(entry.name))
            try:
                # Its number can't be another's while it is held; a process of the sandbox itself is in its cgroup.
                if mark in (entry / "cmdline").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(descriptor)
    return killed


def remove_all(home: Path) -> list[str]:
    """Kill and remove every sandbox in PATCHYARD_HOME, whosever it is, when no worker is at work any more.

    The names of those that are still there come back: empty is the proof that nothing is left.
    """
    places = Places.of(home)
    if not places.folder.is_dir():
        return []
    cgroups = read_cgroups(places.cgroup)
    left = []
    for labels in places.all():
        stop_runtimes(places, labels)
        if not remove(places, cgroups, labels).gone:
            left.append(labels.name)
    left += [name for name in cgroups.names() if not cgroups.remove(name, GONE_SECONDS)]
    cgroups.remove_parent()
    return left


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except FileNotFoundError:
        return []


def _mount_points(pid: int | str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [line.split(" ", 5)[4] for line in text.splitlines()]
