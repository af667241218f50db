"""What this machine keeps to save time, how much of it, and what has to be left free.

Mirrors, downloads and images can all be had again: those least recently used go when their quota is exceeded, or when
the disk is filling up, before it is so full that workers have to wait. What a step or a sandbox uses stays; so does an
image that could not be had again: one that is neither built here nor free of a job that has not ended, or of a name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from images.lock import home_lock, read_locks
from patchyard.layouts import Layouts
from patchyard.room import floor_of, local_folders
from patchyard.settings import Settings
from runners.disk import Floor, lacking, require_room
from runners.eviction import Evicted, Item, evict
from runners.filelock import Busy, hold
from runners.sandbox.backend import Backend
from runners.workspace.mirrors import Mirrors, SourceLimits

_GB = 1_000_000_000
_MARK_SECONDS = 30.0


def open_mirrors(settings: Settings) -> Mirrors:
    """The mirrors of this machine, of which none is begun on a disk that is nearly full."""
    return Mirrors(settings.home, limits=SourceLimits(floor=floor_of(settings)))


@dataclass(frozen=True)
class _Image:
    """`again` says that it would be brought back from a layout when it is needed."""

    digest: str
    again: bool
    item: Item


@dataclass(frozen=True)
class Kept:
    """What a worker or a command keeps here: the mirrors, and the images of a backend if it has one."""

    settings: Settings
    mirrors: Mirrors
    backend: Backend | None = None
    _marked: dict[str, float] = field(default_factory=dict)
    _restocking: threading.Lock = field(default_factory=threading.Lock)
    _learned: list[Path] = field(default_factory=list)

    @property
    def layouts(self) -> Layouts:
        """The images that were built or imported here."""
        return Layouts(home_lock(self.settings.home).parent)

    # -- room ----------------------------------------------------------------------------------------------------------

    def learn_folders(self) -> None:
        """Ask the backend where it keeps things; an engine may take its time. Raises EngineUnavailable."""
        if self.backend is not None and not self._learned:
            self._learned.extend(self.backend.folders())

    def require_room(self) -> None:
        """Raises `NoRoom`. Quick: nobody is asked."""
        require_room([*local_folders(self.settings), *self._learned], floor_of(self.settings))

    # -- images --------------------------------------------------------------------------------------------------------

    def use_image(self, digest: str) -> None:
        """Note that an image is used now."""
        now = time.monotonic()
        if now - self._marked.get(digest, -_MARK_SECONDS) >= _MARK_SECONDS:
            self._marked[digest] = now
            self.layouts.mark(digest)

    def restock(self, digest: str) -> bool:
        """Bring an image that was built or imported here into the backend, if it lacks it; whether it did.

        Raises `NoRoom`, EngineUnavailable, ImageUnavailable, and BadInput for a layout that is damaged.
        """
        if self.backend is None:
            return False
        with self._restocking, self.layouts.in_use(digest) as layout:
            if layout is None or self.backend.has_image(digest):
                return False
            self.require_room()
            self.backend.load_image(layout)
        self.layouts.mark(digest)
        return True

    def images(self) -> Iterator[_Image]:
        """Every image that is kept here, and whether it could be had again."""
        here = set()
        for digest, folder, size in self.layouts.stored():
            here.add(digest)
            remove = partial(self.layouts.drop, digest)
            yield _Image(digest, False, Item("layout", folder.name, size, self.layouts.used_at(digest), remove))
        if self.backend is not None:
            for image in self.backend.stored_images():
                used_at = max(image.used_at, self.layouts.used_at(image.digest))
                remove = partial(self.backend.remove_image, image.digest)
                name = f"{image.name} {image.digest[:19]}…"
                item = Item("image", name, image.size_bytes, used_at, remove)
                yield _Image(image.digest, image.digest in here, item)

    def _named(self) -> set[str]:
        """The digests that have a name here."""
        locked = read_locks([home_lock(self.settings.home), self.settings.images_lock])
        return {entry.digest for entry in locked.values()}

    # -- tidying -------------------------------------------------------------------------------------------------------

    def tidy_mirrors(self, max_bytes: int | None = None) -> Evicted:
        """Evict mirrors and downloads down to their quota, or to `max_bytes`, and until the disk has room."""
        most = round(self.settings.mirrors_max_gb * _GB) if max_bytes is None else max_bytes
        has_room = partial(self._has_room, [self.settings.home / "mirrors", self.settings.home / "downloads"])
        return evict(self.mirrors.items(), max_bytes=most, has_room=has_room)

    def tidy_images(self, live: set[str] | None, max_bytes: int | None = None) -> Evicted:
        """Evict images as `tidy_mirrors` does. `live` are those of jobs that have not ended, None if that is not known.

        Raises EngineUnavailable, and BadInput for a lock that cannot be read.
        """
        self.layouts.sweep()
        most = round(self.settings.images_max_gb * _GB) if max_bytes is None else max_bytes
        every, named = list(self.images()), self._named()
        may_go = [one for one in every if one.again or (live is not None and one.digest not in named | live)]
        staying = sum(one.item.size_bytes for one in every) - sum(one.item.size_bytes for one in may_go)
        self.learn_folders()
        folders = [self.settings.home / "images", *self._learned]
        items = [one.item for one in may_go]
        return evict(items, max_bytes=most, other_bytes=staying, has_room=partial(self._has_room, folders))

    def _has_room(self, folders: Iterable[Path]) -> bool:
        """Whether there is half as much again as has to be free: room is made before anybody has to wait for it."""
        floor = floor_of(self.settings)
        return not lacking(folders, Floor(floor.free_bytes * 3 // 2, floor.free_inodes * 3 // 2))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process of this PATCHYARD_HOME tidies meanwhile."""
        try:
            with hold(self.settings.home / "tidy.lock"):
                yield True
        except Busy:
            yield False
