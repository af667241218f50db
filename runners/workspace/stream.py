"""Tree in, tree out: the tar that a sandbox unpacks, and the tree that its tar becomes.

Guarantees: `tar_of_tree` gives the same bytes for the same tree everywhere; `tree_of_tar` of an unchanged tar gives
the same tree id back (modes, symlinks, empty files, names of any bytes, submodules as empty folders); what an enemy
packed is refused with a typed reason, or is bounded in files, bytes and time. Git LFS pointers stay pointers.

A sandbox's `tar` leaves sockets out of what it writes, so they are looked for in the sandbox, not here. What is not
taken into the next tree: see `ignore`.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runners.workspace.collect import Collector, check_links, leads_out
from runners.workspace.errors import RefusedWorkspace
from runners.workspace.ignore import IgnoreRules
from runners.workspace.paths import decode_path, encode_path
from runners.workspace.store import EXECUTABLE, SUBMODULE, SYMLINK, Store
from runners.workspace.tarball import (
    DEFAULT_LIMITS,
    END,
    Readable,
    TreeLimits,
    file_member,
    folder_member,
    read_members,
    symlink_member,
)
from runners.workspace.trees import RawEntry, canonical_mode

__all__ = ["TarCache", "TreeLimits", "tar_chunks", "tar_of_tree", "tree_of_tar"]

DEFAULT_CACHE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _FolderTar:
    """The members of one folder, itself included, without its sub-folders, which follow."""

    data: bytes
    folders: tuple[tuple[bytes, str], ...]


class TarCache:
    """The members of recently streamed folders, by path and tree id; the oldest use goes first.

    By folder and not by whole tree, so that the next tree of the same job reads only the folders that changed.
    """

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._max_bytes, self._held_bytes = max_bytes, 0
        self._folders: OrderedDict[tuple[bytes, str], _FolderTar] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[bytes, str]) -> _FolderTar | None:
        with self._lock:
            found = self._folders.get(key)
            if found is not None:
                self._folders.move_to_end(key)
            return found

    def put(self, key: tuple[bytes, str], folder: _FolderTar) -> None:
        if len(folder.data) > self._max_bytes // 4:
            return
        with self._lock:
            if key in self._folders:
                return
            self._folders[key] = folder
            self._held_bytes += len(folder.data)
            while self._held_bytes > self._max_bytes:
                _, oldest = self._folders.popitem(last=False)
                self._held_bytes -= len(oldest.data)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes


_CACHE = TarCache()


def tar_chunks(store: Store, tree: str, cache: TarCache = _CACHE) -> Iterator[bytes]:
    """The tar of `tree`, a chunk a folder: what to write to a sandbox. Raises `ObjectUnreadable`."""
    yield from folder_members_of(store, b"", tree, cache)
    yield END


def folder_members_of(store: Store, path: bytes, tree: str, cache: TarCache = _CACHE) -> Iterator[bytes]:
    """The members of a folder and all below it, a chunk a folder. Raises `ObjectUnreadable`."""
    ahead = [(path, tree)]
    while ahead:
        key = ahead.pop()
        folder = cache.get(key)
        if folder is None:
            folder = _folder_tar(store, *key)
            cache.put(key, folder)
        ahead.extend(reversed(folder.folders))
        if folder.data:
            yield folder.data


def tar_of_tree(store: Store, tree: str, cache: TarCache = _CACHE) -> bytes:
    """The whole tar of `tree`: files, links and folders owned by the sandbox's user, at one fixed time."""
    return b"".join(tar_chunks(store, tree, cache))


def _folder_tar(store: Store, path: bytes, tree: str) -> _FolderTar:
    parts = [folder_member(path)] if path else []
    lead = path + b"/" if path else b""
    folders = []
    for entry in store.raw_tree(tree):
        here = lead + entry.name
        if entry.is_folder:
            folders.append((here, entry.id.hex()))
        else:
            parts.extend(entry_members(store, here, entry))
    return _FolderTar(b"".join(parts), tuple(folders))


def entry_members(store: Store, path: bytes, entry: RawEntry) -> Iterable[bytes]:
    """The member of a file, a link or a submodule. Raises `ObjectUnreadable`."""
    mode = canonical_mode(entry.mode)
    if mode == SUBMODULE:
        return (folder_member(path),)
    if mode == SYMLINK:
        return (symlink_member(path, store.blob(entry.id.hex())),)
    return file_member(path, store.blob(entry.id.hex()), executable=mode == EXECUTABLE)


def tree_of_tar(store: Store, base_tree: str, tar: bytes | Readable, limits: TreeLimits = DEFAULT_LIMITS) -> str:
    """The id of the tree that a sandbox packed, starting from `base_tree`.

    A file of the base that is not in the tar is deleted. A symbolic link that points out is refused, unless it stood
    so in the base already. Raises `RefusedWorkspace`, `ObjectUnreadable`.
    """
    base = {path: (mode, oid) for path, mode, oid in store.raw_walk(base_tree)}
    rules = IgnoreRules.of_tree(store, base_tree)
    collector = Collector(
        store,
        limits,
        keep=lambda path: encode_path(path) in base or not rules.ignores(path),
        known={oid for mode, oid in base.values() if mode != SUBMODULE},
    )
    collector.take(read_members(io.BytesIO(tar) if isinstance(tar, bytes) else tar, limits))
    base_links = {decode_path(p): decode_path(store.blob(o.hex())) for p, (m, o) in base.items() if m == SYMLINK}
    check_links(
        collector.links,
        lambda path: base_links.get(path) == collector.links[path] and leads_out(base_links, path),
    )
    entries = dict(collector.entries)
    submodules = {decode_path(p): o.hex() for p, (m, o) in base.items() if m == SUBMODULE}
    _keep_submodules(entries, submodules, collector.folders)
    return store.write_tree(entries)


def _keep_submodules(entries: dict[str, tuple[int, str]], submodules: dict[str, str], folders: set[str]) -> None:
    """A submodule stays as long as its empty folder does; nothing may be put into it."""
    if not submodules:
        return
    for path in entries:
        parent = path
        while (cut := parent.rfind("/")) > 0:
            parent = parent[:cut]
            if parent in submodules:
                raise RefusedWorkspace("inside_submodule", path)
    for path, commit in submodules.items():
        if path in folders:
            entries[path] = (SUBMODULE, commit)
