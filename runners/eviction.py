"""What is kept only to save time, and may go when room is needed: least recently used first, never what is in use.

Whatever can be evicted is an `Item`, whose `remove` takes it away in one step, or says that it is in use and stays.
Removal is a rename followed by a delete, so that nobody ever sees half of an item; what a killed process left of it is
deleted by the next who looks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_SECTOR_BYTES = 512
_NEW_SECONDS = 60.0


@dataclass(frozen=True)
class Item:
    """Something that can be had again. `used_at` is in seconds since the epoch; `remove` returns whether it is gone."""

    kind: str
    name: str
    size_bytes: int
    used_at: float
    remove: Callable[[], bool]


@dataclass(frozen=True)
class Evicted:
    """What an eviction did. `enough` is whether it got as far as it should: what is left is in use."""

    removed: tuple[Item, ...]
    kept_bytes: int
    enough: bool

    @property
    def freed_bytes(self) -> int:
        """What was freed."""
        return sum(item.size_bytes for item in self.removed)


def evict(
    items: Iterable[Item], *, max_bytes: int, other_bytes: int = 0, has_room: Callable[[], bool] = lambda: True
) -> Evicted:
    """Remove the least recently used until all take at most `max_bytes` and the disk has room.

    `other_bytes` count against `max_bytes` and are no item: they cannot be removed.
    """
    waiting = sorted(items, key=lambda item: item.used_at)
    total = other_bytes + sum(item.size_bytes for item in waiting)
    removed: list[Item] = []
    for item in waiting:
        if total <= max_bytes and has_room():
            break
        if item.remove():
            removed.append(item)
            total -= item.size_bytes
    return Evicted(tuple(removed), total, total <= max_bytes and has_room())


def size_bytes(place: Path) -> int:
    """What a file or folder takes on the disk, each file once whatever its names. What vanishes meanwhile is 0."""
    seen: set[tuple[int, int]] = set()
    total, ahead = 0, [os.fspath(place)]
    while ahead:
        path = ahead.pop()
        with suppress(OSError):
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) in seen:
                continue
            total += _SECTOR_BYTES * found.st_blocks
            if stat.S_ISDIR(found.st_mode):
                ahead += [entry.path for entry in os.scandir(path)]
            elif found.st_nlink > 1:
                seen.add((found.st_dev, found.st_ino))
    return total


def mark_used(path: Path) -> None:
    """Note that what this file stands for is used now. Where that cannot be written, it looks less used than it is."""
    with suppress(OSError):
        os.utime(path)


def set_aside(path: Path, folder: Path) -> Path | None:
    """Rename `path` into a name in `folder` that nobody looks for; None when it is not there. To be deleted next."""
    aside = folder / f".old-{os.getpid()}-{os.urandom(6).hex()}"
    try:
        path.rename(aside)
    except FileNotFoundError:
        return None
    return aside


def sweep(folder: Path, drafts: str) -> None:
    """Delete what others set aside, and the drafts (by their prefix) of builders, who died before they did."""
    for path in folder.glob(".old-*"):
        delete(path)
    for path in folder.glob(f"{drafts}*"):
        if _is_abandoned(path):
            delete(path)


@contextmanager
def drafted(folder: Path, prefix: str, mode: int = 0o755) -> Iterator[Path]:
    """A new folder in the making, to be renamed to its place when it is whole; what is left of it is deleted.

    It is held while it is made, so that `sweep` tells it from what a dead builder has left.
    """
    path = folder / f"{prefix}{os.getpid()}-{os.urandom(6).hex()}"
    path.mkdir(mode=mode)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(handle)
        delete(path)


def _is_abandoned(draft: Path) -> bool:
    """Whether nobody makes it any more. A new one may not be held yet."""
    try:
        if time.time() - draft.stat().st_mtime < _NEW_SECONDS:
            return False
        handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def delete(path: Path) -> None:
    """Delete a file or folder, as far as that goes; another may be at it too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
