"""What differs between two trees: as paths, as a patch that `git apply` takes, and against globs.

The patch is a pure function of the two trees: our own headers around libgit2's text hunks, no renames, full object
ids, no attributes and no configuration, so that the same trees give the same bytes on every host. It is always UTF-8
text without NUL, since it travels in JSON: a file that is not goes into git's binary hunks.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import pathspec
import pygit2
from pygit2.enums import DiffOption

from ledger.errors import BadInput, Permanent
from runners.workspace.paths import decode_path, encode_path
from runners.workspace.store import SUBMODULE, Store
from runners.workspace.trees import EMPTY_TREE, RawEntry, canonical_mode

ChangeKind = Literal["added", "deleted", "modified"]
NO_ID = "0" * 40
# Beyond 16 MiB hunks cost more than they tell.
_MAX_TEXT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """One path that differs; mode 0 and an id of zeros stand for "not there"."""

    path: str
    kind: ChangeKind
    old_mode: int
    old_id: str
    new_mode: int
    new_id: str


def changed_paths(store: Store, old: str, new: str) -> list[ChangedPath]:
    """Every file, symlink and submodule that differs, sorted by the bytes of their paths. Raises `ObjectUnreadable`."""
    changes = sorted(_compare(store, old, new, b""), key=lambda change: change[0])
    return [_changed(path, before, after) for path, before, after in changes]


_Leaf = RawEntry | None


def _compare(store: Store, old: str, new: str, lead: bytes) -> Iterator[tuple[bytes, _Leaf, _Leaf]]:
    """The leaves that differ below two folders; equal sub-folders are not even opened."""
    before = {e.name: e for e in store.raw_tree(old)}
    after = {e.name: e for e in store.raw_tree(new)}
    for name in before.keys() | after.keys():
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        folders = [e.id.hex() if e is not None and e.is_folder else EMPTY_TREE for e in (was, now)]
        if folders[0] != folders[1]:
            yield from _compare(store, folders[0], folders[1], lead + name + b"/")
        was, now = _leaf(was), _leaf(now)
        if was != now:
            yield lead + name, was, now


def _leaf(entry: RawEntry | None) -> _Leaf:
    if entry is None or entry.is_folder:
        return None
    return entry._replace(mode=canonical_mode(entry.mode))


def _changed(path: bytes, before: _Leaf, after: _Leaf) -> ChangedPath:
    kind: ChangeKind = "added" if before is None else "deleted" if after is None else "modified"
    return ChangedPath(
        decode_path(path),
        kind,
        before.mode if before else 0,
        before.id.hex() if before else NO_ID,
        after.mode if after else 0,
        after.id.hex() if after else NO_ID,
    )


# -- the patch ---------------------------------------------------------------------------------------------------------


class PatchTooBig(Permanent):
    """The patch is larger than what can be kept of it."""


def patch_bytes(store: Store, old: str, new: str, *, max_bytes: int | None = None) -> bytes:
    """The patch from `old` to `new`, `git apply`-able to a checkout of `old`; b"" when they are equal.

    UTF-8 without NUL. Files that are no such text are included in both directions. Over `max_bytes` it is packed: all
    files as binary hunks, in one direction. Raises `ObjectUnreadable`, and `PatchTooBig` if that does not help.
    """
    try:
        return _patch(store, old, new, max_bytes, _PORTABLE)
    except PatchTooBig:
        return _patch(store, old, new, max_bytes, _PACKED)


def shown_patch(store: Store, old: str, new: str) -> bytes:
    """As `patch_bytes`, for whoever reads it: all that is no binary file stands as lines, whatever its encoding."""
    return _patch(store, old, new, None, _SHOWN)


def _patch(store: Store, old: str, new: str, max_bytes: int | None, form: _Form) -> bytes:
    parts, size = [], 0
    for change in changed_paths(store, old, new):
        parts.append(_file_patch(store, change, form))
        size += len(parts[-1])
        if max_bytes is not None and size > max_bytes:
            raise PatchTooBig(f"the patch has more than {max_bytes >> 20} MiB")
    return b"".join(parts)


def _file_patch(store: Store, change: ChangedPath, form: _Form) -> bytes:
    if change.kind == "modified" and change.old_mode & 0o170000 != change.new_mode & 0o170000:
        # A file that became a link is another file: git writes it as a deletion and an addition.
        gone = ChangedPath(change.path, "deleted", change.old_mode, change.old_id, 0, NO_ID)
        come = ChangedPath(change.path, "added", 0, NO_ID, change.new_mode, change.new_id)
        return _file_patch(store, gone, form) + _file_patch(store, come, form)
    path = encode_path(change.path)
    old_name, new_name = _quoted(b"a/" + path), _quoted(b"b/" + path)
    lines = [b"diff --git %b %b" % (old_name, new_name)]
    if change.kind == "added":
        lines.append(b"new file mode %06o" % change.new_mode)
    elif change.kind == "deleted":
        lines.append(b"deleted file mode %06o" % change.old_mode)
    elif change.old_mode != change.new_mode:
        lines += [b"old mode %06o" % change.old_mode, b"new mode %06o" % change.new_mode]
    if change.old_id != change.new_id:
        same_mode = b" %06o" % change.new_mode if change.old_mode == change.new_mode else b""
        lines.append(b"index %b..%b%b" % (change.old_id.encode(), change.new_id.encode(), same_mode))
    head = b"\n".join(lines) + b"\n"
    if change.old_id == change.new_id:
        return head
    before = _content(store, change.old_mode, change.old_id)
    after = _content(store, change.new_mode, change.new_id)
    if not (form.as_text(before) and form.as_text(after)):
        return head + b"GIT binary patch\n" + _literal(after) + (_literal(before) if form.both_ways else b"")
    if not before and not after:
        return head
    labels = (
        b"/dev/null" if change.kind == "added" else _label(old_name),
        b"/dev/null" if change.kind == "deleted" else _label(new_name),
    )
    return head + b"--- %b\n+++ %b\n" % labels + _hunks(before, after)


def _content(store: Store, mode: int, object_id: str) -> bytes:
    if mode == 0:
        return b""
    if mode == SUBMODULE:
        return b"Subproject commit %b\n" % object_id.encode()
    return store.blob(object_id)


@dataclass(frozen=True, slots=True)
class _Form:
    """Which files stand as lines of text, and whether the others can be taken back too."""

    as_text: Callable[[bytes], bool]
    both_ways: bool = True


def _is_text(data: bytes) -> bool:
    if b"\0" in data or len(data) > _MAX_TEXT_BYTES:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_PORTABLE = _Form(_is_text)
_PACKED = _Form(lambda data: not data, both_ways=False)
_SHOWN = _Form(lambda data: b"\0" not in data[:8_000] and len(data) <= _MAX_TEXT_BYTES)  # as git tells them apart


def _hunks(before: bytes, after: bytes) -> bytes:
    flags = DiffOption.FORCE_TEXT | DiffOption.INDENT_HEURISTIC
    text = pygit2.Patch.create_from(before, after, flag=flags, context_lines=3, interhunk_lines=0).data
    return text[text.index(b"\n@@ ") + 1 :]


def _literal(data: bytes) -> bytes:
    """git's binary hunk: the deflated bytes in lines of 52, each with a letter for its length and in base 85."""
    deflated = zlib.compress(data, 6)
    lines = [b"literal %d" % len(data)]
    for at in range(0, len(deflated), 52):
        part = deflated[at : at + 52]
        length = len(part)
        letter = bytes([length + (ord("A") - 1 if length <= 26 else ord("a") - 27)])
        lines.append(letter + base64.b85encode(part, pad=True))
    return b"\n".join(lines) + b"\n\n"


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def _quoted(path: bytes) -> bytes:
    """`path` as git writes it: in C quotes when it has control, non-ASCII or quote characters."""
    if all(0x20 <= byte < 0x7F and byte not in (34, 92) for byte in path):
        return path
    escaped = (_ESCAPES.get(byte, bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte) for byte in path)
    return b'"' + b"".join(escaped) + b'"'


def _label(name: bytes) -> bytes:
    """A name with a space needs a tab behind it on the `---` and `+++` lines, or readers cut it."""
    return name + b"\t" if b" " in name and not name.startswith(b'"') else name


# -- globs -------------------------------------------------------------------------------------------------------------


def matches(globs: Sequence[str], path: str) -> bool:
    """Whether `path` is meant by `globs`, read as lines of a .gitignore: the last that matches counts, `!` negates.

    Raises `BadInput` for a glob that is none.
    """
    # A newline in a name is a character like any other, which regular expressions do not think.
    return bool(_spec(tuple(globs)).match_file(path.replace("\n", "\x01")))


@lru_cache(maxsize=256)
def _spec(globs: tuple[str, ...]) -> pathspec.GitIgnoreSpec:
    try:
        return pathspec.GitIgnoreSpec.from_lines(globs)
    except (ValueError, re.error) as error:
        raise BadInput(f"a glob that cannot be read ({error})", remedy="write it as a line of a .gitignore") from error
