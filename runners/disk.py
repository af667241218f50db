"""Room on the disk, looked at before anything is begun that needs it, and a full disk told from all other failures.

Nothing is begun on a disk that is nearly full: a job's step waits for room instead, without blame. A disk that fills up
in the middle is a `DiskFull` too, which is Temporary; everything here is written beside its place and moved into it
when it is whole, so nothing half-written is ever believed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import DiskFull, NoRoom

_GB, _MB = 1_000_000_000, 1_000_000
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


@dataclass(frozen=True)
class Floor:
    """The least that has to be free on a disk before something is begun on it."""

    free_bytes: int = _GB
    free_inodes: int = 10_000


NO_FLOOR = Floor(0, 0)


@dataclass(frozen=True)
class Room:
    """What is free for us where `folder` is. `free_inodes` is None on file systems that have no such limit."""

    folder: Path
    free_bytes: int
    free_inodes: int | None

    def lacks(self, floor: Floor) -> str:
        """What there is too little of, for people; empty when there is enough."""
        lacking = []
        if self.free_bytes < floor.free_bytes:
            lacking.append(f"{shown_bytes(self.free_bytes)} are free and {shown_bytes(floor.free_bytes)} are needed")
        if self.free_inodes is not None and self.free_inodes < floor.free_inodes:
            lacking.append(f"{self.free_inodes} more files fit and room for {floor.free_inodes} is needed")
        return f"{self.folder}: {', '.join(lacking)}" if lacking else ""


def room_in(folder: Path) -> Room:
    """The room where `folder` is, or will be. Raises OSError for a place that cannot be looked at."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    found = os.statvfs(there)
    return Room(there, found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def lacking(folders: Iterable[Path], floor: Floor) -> list[str]:
    """What is lacking where, one line a disk."""
    seen: set[int] = set()
    lines = []
    for folder in folders:
        try:
            room = room_in(folder)
            disk = room.folder.stat().st_dev
        except OSError:
            continue  # whoever needs it says what is wrong with it
        if disk not in seen and (line := room.lacks(floor)):
            lines.append(line)
        seen.add(disk)
    return lines


def require_room(folders: Iterable[Path], floor: Floor) -> None:
    """Raises `NoRoom` when one of the folders has less than the floor."""
    if lines := lacking(folders, floor):
        raise NoRoom("; ".join(lines))


@contextmanager
def full_disk_told(where: Path | str) -> Iterator[None]:
    """What fails in the block for want of room comes out as `DiskFull`; everything else as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(f"{where}: {error.strerror}") from error


def says_full(words: str) -> bool:
    """Whether another program's message says that a disk is full: it has no better way to say it."""
    return any(full.lower() in words.lower() for full in _WORDS)


def shown_bytes(amount: int) -> str:
    """An amount for people."""
    return f"{amount / _GB:.1f} GB" if amount >= _GB else f"{amount / _MB:.1f} MB"
