"""The bytes of a git tree object, read and written as git defines them: `mode SP name NUL id`, sorted.

Own code instead of pygit2's `Tree`, since names are bytes here, and since a walk over 20,000 files must not make
20,000 objects. Untouched entries keep their raw mode, so that a tree that nobody changed keeps its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

FOLDER = 0o040000
FILE = 0o100644
EXECUTABLE = 0o100755
SYMLINK = 0o120000
SUBMODULE = 0o160000
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

_MODES = {b"%o" % mode: mode for mode in (FOLDER, FILE, EXECUTABLE, SYMLINK, SUBMODULE)}
_ENTRY = re.compile(rb"([0-7]{5,7}) ([^\0]+)\0(.{20})", re.DOTALL)


class RawEntry(NamedTuple):
    """One entry: its name in bytes, its mode as written, its id as 20 bytes."""

    name: bytes
    mode: int
    id: bytes

    @property
    def is_folder(self) -> bool:
        return self.mode & 0o170000 == FOLDER


def canonical_mode(mode: int) -> int:
    """`mode` as git means it: old trees hold 100664 and the like."""
    if mode & 0o170000 == 0o100000:
        return EXECUTABLE if mode & 0o100 else FILE
    return mode


def parse_tree(data: bytes) -> list[RawEntry]:
    """The entries of a tree object. Raises `ValueError` when the bytes are no tree."""
    entries, used_bytes = [], 0
    for mode, name, oid in _ENTRY.findall(data):
        used_bytes += len(mode) + len(name) + 22
        entries.append(RawEntry(name, _MODES.get(mode) or int(mode, 8), oid))
    if used_bytes != len(data):
        raise ValueError("not a tree object")
    return entries


def format_tree(entries: Iterable[RawEntry]) -> bytes:
    """The tree object of `entries`, in git's order: a folder sorts as if its name ended with `/`."""
    ordered = sorted(entries, key=lambda e: e.name + b"/" if e.is_folder else e.name)
    return b"".join(b"%o %b\0%b" % (e.mode, e.name, e.id) for e in ordered)
