"""The folders in which mirrors stand: whole or not there.

A mirror is built in a draft beside its place and moved in by one rename; builders of one place exclude each other among
all threads and processes of the host. A mirror counts as usable for a commit after a walk over all of its tree has
found every object, once for each process; one that is damaged is moved out and built anew. One that nobody uses may be
evicted at any time: who uses a mirror holds its use, shared with others, for as long as it does.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from runners.eviction import delete, drafted, mark_used, set_aside, size_bytes, sweep
from runners.filelock import Busy, hold
from runners.workspace.errors import ObjectUnreadable, RepoUnavailable, StoreUnusable
from runners.workspace.lock import locked
from runners.workspace.store import SUBMODULE, Store

_DRAFT = ".new-"
_PLACE = "[0-9a-f]" * 32
_USE_SECONDS = 60.0

_Built = tuple[int, int] | None
"""What tells a mirror from one that was built anew in its place."""

# Brings objects into the bare repository at the path and returns the id of the commit that is there now.
Fill = Callable[[Path], str]


class Places:
    """The mirrors of one folder, each under a name of its own."""

    def __init__(self, folder: Path, *, lock_seconds: float) -> None:
        self._folder, self._lock_seconds = folder, lock_seconds
        self._whole: dict[tuple[str, str], tuple[Store, _Built]] = {}

    def at_hand(self, place: str, commit: str) -> Store | None:
        """The mirror at `place` when it holds all of `commit`. Takes no lock, runs nothing."""
        store, built = self._whole.get((place, commit), (None, None))
        if store is not None and built == _built(store.path):
            return store
        store = self._usable(place)
        return store if store is not None and self._is_whole(place, store, commit) else None

    def filled(self, place: str, fill: Fill, commit: str | None = None) -> tuple[Store, str]:
        """The mirror at `place` after `fill`, and the commit that it brought.

        When `commit` is given and at hand by the time the lock is held, nothing is filled. Raises what `fill` raises,
        `RepoUnavailable` when the lock is not to be had, `ObjectUnreadable` when even a new mirror is not whole.
        """
        with self._locked(place):
            if commit is not None and (store := self.at_hand(place, commit)) is not None:
                return store, commit
            usable = self._usable(place)
            if usable is not None:
                # What is damaged may be in git's way: a new one shows whether it was that, or the source.
                with suppress(RepoUnavailable):
                    brought = fill(usable.path)
                    if self._is_whole(place, usable, brought):
                        return usable, brought
            with self.draft() as draft:
                Store.create(draft)
                brought = fill(draft)
                return self._move_in(draft, place, brought), brought

    def adopt(self, draft: Path, place: str, commit: str) -> Store:
        """Make the repository `draft` the mirror at `place`, unless one that holds `commit` is there."""
        with self._locked(place):
            return self.at_hand(place, commit) or self._move_in(draft, place, commit)

    def discard(self, place: str) -> None:
        """Throw the mirror at `place` away."""
        with self._locked(place):
            self._move_out(place)

    @contextmanager
    def in_use(self, place: str) -> Iterator[None]:
        """While this is held, the mirror at `place` is not evicted. Raises `RepoUnavailable`."""
        use = self._folder / f"{place}.use"
        with locked(use, _USE_SECONDS, shared=True):
            mark_used(use)
            try:
                yield
            finally:
                mark_used(use)

    def stored(self) -> Iterator[tuple[str, int, float]]:
        """Each mirror's place, its size in bytes, and when it was used last, in seconds since the epoch."""
        sweep(self._folder, _DRAFT)
        for folder in self._folder.glob(_PLACE):
            yield folder.name, size_bytes(folder), self._used_at(folder.name)

    def evict(self, place: str) -> bool:
        """Throw the mirror at `place` away unless somebody uses or builds it; whether it is gone."""
        return self.alone(place, lambda: self._move_out(place))

    def alone(self, place: str, act: Callable[[], None]) -> bool:
        """Do `act` while nobody uses or builds the mirror at `place`; whether that could be done."""
        use, lock = self._folder / f"{place}.use", self._folder / f"{place}.lock"
        try:
            with hold(use), hold(lock):
                act()
                if not (self._folder / place).exists():
                    lock.unlink()
                    use.unlink()
        except Busy:
            return False
        return True

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """The path of a new mirror in the making, an empty folder; what is left of it at the end is removed."""
        sweep(self._folder, _DRAFT)
        with drafted(self._folder, _DRAFT) as path:
            yield path

    def _locked(self, place: str) -> AbstractContextManager[int]:
        return locked(self._folder / f"{place}.lock", self._lock_seconds)

    def _used_at(self, place: str) -> float:
        for name in (f"{place}.use", place):
            try:
                return (self._folder / name).stat().st_mtime
            except FileNotFoundError:
                continue
        return 0.0

    def _usable(self, place: str) -> Store | None:
        try:
            return Store(self._folder / place)
        except StoreUnusable:
            return None

    def _is_whole(self, place: str, store: Store, commit: str) -> bool:
        built = _built(store.path)
        if not store.has(commit):
            return False
        try:
            entries = store.raw_walk(store.tree_of_commit(commit))
            whole = all(mode == SUBMODULE or store.has(oid.hex()) for _, mode, oid in entries)
        except ObjectUnreadable:
            return False
        if whole:
            self._whole[place, commit] = store, built
        return whole

    def _move_in(self, draft: Path, place: str, commit: str) -> Store:
        _rename_packs(draft)
        self._move_out(place)
        draft.rename(self._folder / place)
        store = Store(self._folder / place)
        if not self._is_whole(place, store, commit):
            raise ObjectUnreadable(commit)
        return store

    def _move_out(self, place: str) -> None:
        for key in [key for key in self._whole if key[0] == place]:
            del self._whole[key]
        if (old := set_aside(self._folder / place, self._folder)) is not None:
            delete(old)


def _rename_packs(mirror: Path) -> None:
    """Give the packs names that no pack has had. libgit2 keeps open packs by their paths, for all of a process: while
    somebody there still had the damaged one that a new mirror replaces, the new one would be taken for it."""
    for index in (mirror / "objects" / "pack").glob("*.idx"):
        name = f"pack-{secrets.token_hex(20)}"
        for file in index.parent.glob(f"{index.stem}.*"):
            file.rename(file.with_name(name + file.suffix))


def _built(mirror: Path) -> _Built:
    """A mirror's HEAD is written when the mirror is made and never again."""
    try:
        head = os.stat(mirror / "HEAD")
    except OSError:
        return None
    return head.st_ino, head.st_ctime_ns
