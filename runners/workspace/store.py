"""A bare repository as a store of trees: the only door to git objects for tools, verifier and sandboxes.

Guarantees: every path is checked before it is looked up or written; a tree is written after everything it holds, so
that a tree id which `has` confirms can be read in full, even when a writer died half-way; nothing reads refs, history,
or anybody's git configuration.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pygit2
from pygit2.enums import ObjectType, RepositoryOpenFlag

from ledger.errors import DiskFull
from runners.disk import says_full
from runners.workspace.errors import InvalidPath, ObjectUnreadable, PathConflict, StoreUnusable
from runners.workspace.paths import check_path, decode_path
from runners.workspace.trees import (
    EMPTY_TREE,
    EXECUTABLE,
    FILE,
    FOLDER,
    SUBMODULE,
    SYMLINK,
    RawEntry,
    canonical_mode,
    format_tree,
    parse_tree,
)

__all__ = [
    "EMPTY_TREE",
    "EXECUTABLE",
    "FILE",
    "FOLDER",
    "SUBMODULE",
    "SYMLINK",
    "Change",
    "Entry",
    "Kind",
    "Store",
]

Kind = Literal["file", "symlink", "folder", "submodule"]
_KINDS: dict[int, Kind] = {
    FILE: "file",
    EXECUTABLE: "file",
    SYMLINK: "symlink",
    FOLDER: "folder",
    SUBMODULE: "submodule",
}

_HEX = frozenset("0123456789abcdef")

# No configuration of the user or the system is read, and a mirror may belong to another user of the same service.
for _level in (pygit2.enums.ConfigLevel.SYSTEM, pygit2.enums.ConfigLevel.XDG, pygit2.enums.ConfigLevel.GLOBAL):
    pygit2.settings.search_path[_level] = ""
pygit2.settings.owner_validation = False
# git does not hash what it reads back either: deflate's own checksum finds damage, at half the time of a cold read.
pygit2.settings.enable_strict_hash_verification(False)


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at a path of a tree. `mode` is one of git's five, `id` is 40 hex digits."""

    path: str
    mode: int
    id: str

    @property
    def kind(self) -> Kind:
        return _KINDS[self.mode]


@dataclass(frozen=True, slots=True)
class Change:
    """What shall stand at a path: `mode` is `FILE`, `EXECUTABLE` or `SYMLINK`, whose `data` is the link's target."""

    mode: int
    data: bytes


class Store:
    """Trees and blobs of one bare repository. Safe to share among threads: each has its own handle."""

    def __init__(self, path: Path) -> None:
        """Open the bare repository at `path`. Raises `StoreUnusable`."""
        self.path = path
        self._local = threading.local()
        self._odb()

    @classmethod
    def create(cls, path: Path) -> Store:
        """Make an empty bare repository at `path` (hooks and templates left out) and open it."""
        with _full_disk_told(path):
            pygit2.init_repository(str(path), bare=True)
        return cls(path)

    # -- reading -----------------------------------------------------------------------------------------------

    def has(self, object_id: str) -> bool:
        """Whether the object is there; of a tree it means that all of it is there."""
        return object_id == EMPTY_TREE or (_is_id(object_id) and self._odb().exists(object_id))

    def entry(self, tree: str, path: str) -> Entry | None:
        """What stands at `path`, or None. Raises `InvalidPath`, `ObjectUnreadable`."""
        names = check_path(path).split(b"/")
        folder = tree
        for depth, name in enumerate(names, 1):
            found = next((e for e in self.raw_tree(folder) if e.name == name), None)
            if found is None:
                return None
            if depth == len(names):
                return _entry(path, found)
            if not found.is_folder:
                return None
            folder = found.id.hex()
        return None

    def blob(self, object_id: str) -> bytes:
        """The bytes of a file, or a link's target. Raises `ObjectUnreadable`."""
        return self._read(object_id, ObjectType.BLOB)

    def blob_size(self, object_id: str) -> int:
        """The size in bytes of a blob, without reading it. Raises `ObjectUnreadable`."""
        try:
            kind, size = self._odb().read_header(object_id)
        except (pygit2.GitError, KeyError, ValueError) as error:
            raise ObjectUnreadable(object_id) from error
        if kind != ObjectType.BLOB:
            raise ObjectUnreadable(object_id)
        return size

    def walk(self, tree: str, prefix: str = "", *, submodules: bool = False) -> Iterator[Entry]:
        """Every file and symlink below the folder (or at the file) `prefix`, sorted by the bytes of their paths.

        Submodules are entries without content, and come only when asked for. A `prefix` that is not there yields
        nothing. Raises `InvalidPath`, `ObjectUnreadable`.
        """
        if prefix:
            top = self.entry(tree, prefix)
            if top is None:
                return
            if top.kind != "folder":
                if submodules or top.kind != "submodule":
                    yield top
                return
            tree = top.id
        for raw_path, mode, raw_id in self.raw_walk(tree, check_path(prefix) + b"/" if prefix else b""):
            if submodules or mode != SUBMODULE:
                yield Entry(decode_path(raw_path), mode, raw_id.hex())

    def list_folder(self, tree: str, path: str = "") -> list[Entry]:
        """The entries of the folder `path` ("" is the root), of every kind, in git's order.

        Empty when there is no such folder. Raises `InvalidPath`, `ObjectUnreadable`.
        """
        folder: str | None = tree
        if path:
            entry = self.entry(tree, path)
            folder = entry.id if entry is not None and entry.kind == "folder" else None
        if folder is None:
            return []
        lead = f"{path}/" if path else ""
        return [_entry(lead + decode_path(e.name), e) for e in self.raw_tree(folder)]

    def raw_tree(self, tree: str) -> list[RawEntry]:
        """The entries of one folder, names in bytes. Raises `ObjectUnreadable`."""
        if tree == EMPTY_TREE:
            return []
        try:
            return parse_tree(self._read(tree, ObjectType.TREE))
        except ValueError as error:
            raise ObjectUnreadable(tree) from error

    def raw_walk(self, tree: str, lead: bytes = b"") -> Iterator[tuple[bytes, int, bytes]]:
        """Path, canonical mode and id of all that is no folder, in the order of the paths' bytes."""
        stack = [(lead + e.name, e) for e in reversed(self.raw_tree(tree))]
        while stack:
            path, entry = stack.pop()
            if entry.is_folder:
                stack.extend((path + b"/" + e.name, e) for e in reversed(self.raw_tree(entry.id.hex())))
            else:
                yield path, canonical_mode(entry.mode), entry.id

    def tree_of_commit(self, commit: str) -> str:
        """The tree id of a commit. Raises `ObjectUnreadable`."""
        data = self._read(commit, ObjectType.COMMIT)
        if not data.startswith(b"tree ") or data[45:46] != b"\n":
            raise ObjectUnreadable(commit)
        return data[5:45].decode("ascii")

    def raw_object(self, object_id: str) -> tuple[int, bytes]:
        """Type number and bytes of any object, for packs. Raises `ObjectUnreadable`."""
        if object_id == EMPTY_TREE:
            return ObjectType.TREE, b""
        if not _is_id(object_id):
            raise ObjectUnreadable(object_id)
        try:
            return self._odb().read(object_id)
        except (pygit2.GitError, KeyError, ValueError) as error:
            raise ObjectUnreadable(object_id) from error

    # -- writing -----------------------------------------------------------------------------------------------

    def add_object(self, kind: int, data: bytes) -> str:
        """Write one object of the given type number; a tree or commit only after all that it names.

        Raises `DiskFull`.
        """
        with _full_disk_told(self.path):
            return str(self._odb().write(kind, data))

    def add_blob(self, data: bytes, known: Collection[bytes] = ()) -> str:
        """Write a blob and return its id; nothing is written when its id (20 bytes) is `known` to be there."""
        digest = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
        digest.update(data)
        return digest.hexdigest() if digest.digest() in known else self.add_object(ObjectType.BLOB, data)

    def with_changes(self, tree: str, changes: Mapping[str, Change | None]) -> str:
        """The id of `tree` with `changes` applied, all of them or none; `None` deletes, also a whole folder.

        Deleting what is not there changes nothing, and folders without files vanish. Raises `InvalidPath`;
        `PathConflict` when a file would take the place of a folder or the other way round, unless what is in the way
        is deleted by the same changes.
        """
        for path, change in changes.items():
            check_path(path, link=change is not None and change.mode == SYMLINK)
            if change is not None:
                _check_change(path, change)
        entries = {
            path: None if change is None else (change.mode, self.add_blob(change.data))
            for path, change in changes.items()
        }
        return self.with_entries(tree, entries)

    def with_entries(self, tree: str, entries: Mapping[str, tuple[int, str] | None], *, replace: bool = False) -> str:
        """As `with_changes`, with (mode, id) of blobs that are there; `replace` lets the new win every conflict."""
        root = _Node()
        for path, entry in entries.items():
            leaf = None if entry is None else RawEntry(b"", entry[0], bytes.fromhex(entry[1]))
            root.put(check_path(path).split(b"/"), leaf)
        merged = self._merge_folder(tree, root, b"", replace)
        return EMPTY_TREE if merged is None else merged

    def write_tree(self, entries: Mapping[str, tuple[int, str]]) -> str:
        """The id of the tree that holds exactly `entries`, (mode, id) by path. Raises `InvalidPath`, `PathConflict`."""
        return self.with_entries(EMPTY_TREE, entries)

    # -- inside ------------------------------------------------------------------------------------------------

    def _merge_folder(self, tree: str, node: _Node, lead: bytes, replace: bool) -> str | None:
        """The id of the folder `tree` with the node's changes below `lead`, or None when nothing is left in it."""
        here = {e.name: e for e in self.raw_tree(tree)}
        for name, child in node.children.items():
            merged = self._merge_entry(here.get(name), child, lead + name, replace)
            if merged is None:
                here.pop(name, None)
            else:
                here[name] = RawEntry(name, merged.mode, merged.id)
        if not here:
            return None
        return self.add_object(ObjectType.TREE, format_tree(here.values()))

    def _merge_entry(self, old: RawEntry | None, node: _Node, path: bytes, replace: bool) -> RawEntry | None:
        """What stands at `path` after the change of itself (`node.leaf`) and of what is below it."""
        if node.is_set and node.leaf is None:
            old = None
        if node.children:
            below = old.id.hex() if old is not None and old.is_folder else EMPTY_TREE
            in_the_way = old is not None and not old.is_folder
            if in_the_way and not node.adds_below():
                return old if node.leaf is None else node.leaf
            if in_the_way and not replace:
                raise PathConflict(decode_path(path))
            folder = self._merge_folder(below, node, path + b"/", replace)
            old = None if folder is None else RawEntry(b"", FOLDER, bytes.fromhex(folder))
        if node.leaf is None:
            return old
        if old is not None and (old.is_folder or old.mode == SUBMODULE) and not replace:
            raise PathConflict(decode_path(path))
        return node.leaf

    def _odb(self) -> pygit2.Odb:
        odb: pygit2.Odb | None = getattr(self._local, "odb", None)
        if odb is None:
            try:
                flags = RepositoryOpenFlag.NO_SEARCH | RepositoryOpenFlag.BARE | RepositoryOpenFlag.NO_DOTGIT
                repository = pygit2.Repository(str(self.path), flags)
            except (pygit2.GitError, KeyError, ValueError) as error:
                raise StoreUnusable(f"{self.path} is not a usable bare repository") from error
            odb = self._local.odb = repository.odb
        return odb

    def _read(self, object_id: str, kind: ObjectType) -> bytes:
        found, data = self.raw_object(object_id)
        if found != kind:
            raise ObjectUnreadable(object_id)
        return data


class _Node:
    """Changes by path component: of the path itself (`leaf`, when `is_set`) and of what is below it."""

    __slots__ = ("children", "is_set", "leaf")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.is_set = False
        self.leaf: RawEntry | None = None

    def put(self, names: list[bytes], leaf: RawEntry | None) -> None:
        node = self
        for name in names:
            node = node.children.setdefault(name, _Node())
        node.is_set, node.leaf = True, leaf

    def adds_below(self) -> bool:
        return any(child.leaf is not None or child.adds_below() for child in self.children.values())


@contextmanager
def _full_disk_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (pygit2.GitError, OSError) as error:
        if not says_full(str(error)):
            raise
        raise DiskFull(f"{path.parent}: {error}") from error


def _is_id(object_id: str) -> bool:
    """Whether this is a full id: a shorter one would be taken for the beginning of several."""
    return len(object_id) == 40 and _HEX.issuperset(object_id)


def _entry(path: str, raw: RawEntry) -> Entry:
    return Entry(path, canonical_mode(raw.mode), raw.id.hex())


def _check_change(path: str, change: Change) -> None:
    if change.mode not in (FILE, EXECUTABLE, SYMLINK):
        raise InvalidPath("bad_path", path)
    if change.mode == SYMLINK and (not change.data or b"\0" in change.data or len(change.data) > 4095):
        raise InvalidPath("bad_path", path)
