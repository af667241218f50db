"""The folders in which mirrors stand: whole or not there.

A mirror is built in a draft beside its place and moved in by one rename; builders of one place exclude each other among
all threads and processes of the host. A mirror counts as usable for a commit after a walk over all of its tree has
found every object, once for each process; one that is damaged is moved out and built anew.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from runners.workspace.errors import ObjectUnreadable, StoreUnusable
from runners.workspace.lock import locked
from runners.workspace.store import SUBMODULE, Store

_LEFTOVER_SECONDS = 24 * 3600

# Brings objects into the bare repository at the path and returns the id of the commit that is there now.
Fill = Callable[[Path], str]


class Places:
    """The mirrors of one folder, each under a name of its own."""

    def __init__(self, folder: Path, *, lock_seconds: float) -> None:
        self._folder, self._lock_seconds = folder, lock_seconds
        self._whole: dict[tuple[str, str], Store] = {}

    def at_hand(self, place: str, commit: str) -> Store | None:
        """The mirror at `place` when it holds all of `commit`. Takes no lock, runs nothing."""
        known = self._whole.get((place, commit))
        if known is not None and known.path.is_dir():
            return known
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
    def draft(self) -> Iterator[Path]:
        """The path of a new mirror in the making; what is left of it at the end is removed."""
        self._sweep()
        path = self._folder / f".new-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _locked(self, place: str) -> AbstractContextManager[None]:
        return locked(self._folder / f"{place}.lock", self._lock_seconds)

    def _usable(self, place: str) -> Store | None:
        try:
            return Store(self._folder / place)
        except StoreUnusable:
            return None

    def _is_whole(self, place: str, store: Store, commit: str) -> bool:
        if not store.has(commit):
            return False
        try:
            entries = store.raw_walk(store.tree_of_commit(commit))
            whole = all(mode == SUBMODULE or store.has(oid.hex()) for _, mode, oid in entries)
        except ObjectUnreadable:
            return False
        if whole:
            self._whole[place, commit] = store
        return whole

    def _move_in(self, draft: Path, place: str, commit: str) -> Store:
        self._move_out(place)
        draft.rename(self._folder / place)
        store = Store(self._folder / place)
        if not self._is_whole(place, store, commit):
            raise ObjectUnreadable(commit)
        return store

    def _move_out(self, place: str) -> None:
        for key in [key for key in self._whole if key[0] == place]:
            del self._whole[key]
        old = self._folder / f".old-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            (self._folder / place).rename(old)
        except FileNotFoundError:
            return
        shutil.rmtree(old, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what builders left that died; a live one is never that old."""
        for path in self._folder.glob(".[no][el][wd]-*"):
            try:
                old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
            except FileNotFoundError:
                continue
            if old:
                shutil.rmtree(path, ignore_errors=True)
