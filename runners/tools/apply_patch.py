"""apply_patch: several edits, all or none, as a function from tree to tree.

Every edit says which version of its file it is for, and all edits of one file are placed in that version before any of
them is applied, so that line numbers mean what the model read, whatever the order. It works on bytes: what an edit does
not name stays as it is, encoding and file mode included.

Two things are done for the model and told in `notes`. A file whose lines all end with CRLF keeps that: newlines of the
edit become CRLF. And lines stay lines: text that takes the place of whole lines gets the newline that it lacks, unless
it ends a file that has no final newline either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from policy.errors import ToolFailure
from policy.tools import ABSENT, ApplyPatch, Edit
from runners.tools.files import entry_at, file_at, text_at
from runners.tools.observed import Observed, ToolLimits, shown_path
from runners.tools.textlines import TextLines
from runners.workspace.errors import InvalidPath, PathConflict
from runners.workspace.store import FILE, Change, Entry, Store

_NEWLINE_ADDED = "a newline was added where the text of an edit had none"


@dataclass(frozen=True)
class _Place:
    """One edit, placed: the bytes [start, end) of the version that was read give way to `text`."""

    start: int
    end: int
    number: int
    text: bytes
    whole_lines: bool


@dataclass(frozen=True)
class _Edited:
    """A file after its edits. `before` is None for a new file."""

    change: Change
    before: Entry | None
    notes: tuple[str, ...] = ()


def apply_patch(store: Store, tree: str, args: ApplyPatch, limits: ToolLimits) -> Observed:
    """The new tree, and in `changed` each path with its new version. `tree` is None if nothing changed.

    Raises ToolFailure EINVAL, ESTALE, ENOMATCH, EAMBIGUOUS, EPATH, ENOENT, EBINARY or ETOOBIG, naming the edit.
    """
    edited = {path: _edit_file(store, tree, path, edits, limits) for path, edits in _by_path(args.edits).items()}
    try:
        new_tree = store.with_changes(tree, {path: file.change for path, file in edited.items()})
    except (InvalidPath, PathConflict) as wrong:
        raise ToolFailure("EPATH", wrong.message) from None
    changed = [_shown(store, new_tree, path, file) for path, file in edited.items()]
    notes = [f"{shown_path(path)}: {note}" for path, file in edited.items() for note in file.notes]
    data: dict[str, Any] = {"changed": [row for row in changed if row["version"] != row["was"]]}
    if new_tree == tree:
        notes.append("nothing changed: the new text is the old text")
    return Observed(data | ({"notes": notes} if notes else {}), tree=None if new_tree == tree else new_tree)


def _by_path(edits: Sequence[Edit]) -> dict[str, list[tuple[int, Edit]]]:
    grouped: dict[str, list[tuple[int, Edit]]] = {}
    for number, edit in enumerate(edits):
        grouped.setdefault(edit.path, []).append((number, edit))
    return grouped


def _shown(store: Store, new_tree: str, path: str, file: _Edited) -> dict[str, Any]:
    entry = file_at(store, new_tree, path)
    lines = TextLines(file.change.data).count
    was = file.before.id if file.before else ABSENT
    return {"path": shown_path(path), "version": entry.id, "was": was, "total_lines": lines}


def _edit_file(store: Store, tree: str, path: str, edits: list[tuple[int, Edit]], limits: ToolLimits) -> _Edited:
    first_number, first = edits[0]
    if any(edit.version == ABSENT for _, edit in edits):
        if len(edits) > 1:
            raise _failure("EINVAL", first_number, f"{shown_path(path)} is made new and edited in the same call")
        return _new_file(store, tree, first_number, first, limits)
    try:
        entry, data = text_at(store, tree, path, limits)
    except ToolFailure as wrong:
        raise _failure(wrong.code, first_number, wrong.message, wrong.suggested_action) from None
    for number, edit in edits:
        if edit.version != entry.id:
            raise _failure("ESTALE", number, f"{shown_path(path)} has the version {entry.id}, not {edit.version[:100]}")
    lines = TextLines(data)
    notes: list[str] = []
    places = sorted(
        (_place(lines, number, edit, notes) for number, edit in edits), key=lambda p: (p.start, p.end, p.number)
    )
    for one, next_one in pairwise(places):
        if next_one.start < one.end:
            raise _failure("EINVAL", next_one.number, f"it overlaps with edits.{one.number} in {shown_path(path)}")
    new = _joined(lines, places, notes)
    _check_size(first_number, path, new, limits)
    return _Edited(Change(entry.mode, new), entry, tuple(dict.fromkeys(notes)))


def _new_file(store: Store, tree: str, number: int, edit: Edit, limits: ToolLimits) -> _Edited:
    there = entry_at(store, tree, edit.path)
    if there is not None:
        what = f"has the version {there.id}" if there.kind == "file" else f"is a {there.kind}"
        code = "ESTALE" if there.kind == "file" else "EPATH"
        raise _failure(code, number, f"{shown_path(edit.path)} is there already and {what}")
    data = _bytes(number, edit.new)
    _check_size(number, edit.path, data, limits)
    return _Edited(Change(FILE, data), None)


def _place(lines: TextLines, number: int, edit: Edit, notes: list[str]) -> _Place:
    new = _as_file_ends(lines, _bytes(number, edit.new), notes)
    if edit.lines is not None:
        first, last = edit.lines
        if last > lines.count or first > lines.count + 1:
            raise _failure("EINVAL", number, f"lines: {shown_path(edit.path)} has {lines.count} lines")
        return _Place(lines.start(first), lines.start(last + 1), number, new, whole_lines=True)
    old = _as_file_ends(lines, _bytes(number, edit.old or ""), [])
    start = lines.data.find(old)
    if start < 0:
        raise _failure("ENOMATCH", number, f"old does not occur in {shown_path(edit.path)}{_hint(lines, old)}")
    again = lines.data.find(old, start + 1)
    if again >= 0:
        where = f"at lines {lines.line_at(start)} and {lines.line_at(again)}"
        raise _failure("EAMBIGUOUS", number, f"old occurs more than once in {shown_path(edit.path)}, {where}")
    return _Place(start, start + len(old), number, new, whole_lines=False)


def _hint(lines: TextLines, old: bytes) -> str:
    """Where the first line of `old` that is not blank stands, since often only the rest of it is wrong."""
    first = next((line.strip() for line in old.split(b"\n") if line.strip()), b"")
    at = lines.data.find(first) if first else -1
    return "" if at < 0 else f"; its first line stands at line {lines.line_at(at)}"


def _as_file_ends(lines: TextLines, text: bytes, notes: list[str]) -> bytes:
    if lines.endings != "crlf" or b"\n" not in text or b"\r\n" in text:
        return text
    notes.append("its line endings are CRLF, and the new text got them too")
    return text.replace(b"\n", b"\r\n")


def _joined(lines: TextLines, places: Sequence[_Place], notes: list[str]) -> bytes:
    """The file with every place's text put in; whole lines, and what follows them, start on a line of their own."""
    newline = b"\r\n" if lines.endings == "crlf" else b"\n"
    pieces: list[tuple[bytes, bool]] = []
    at = 0
    for place in places:
        pieces += [(lines.data[at : place.start], False), (place.text, place.whole_lines)]
        at = place.end
    pieces.append((lines.data[at:], False))
    out, ends_lines = bytearray(), False
    for piece, whole_lines in pieces:
        if not piece:
            continue
        if (whole_lines or ends_lines) and out and not out.endswith(b"\n"):
            out += newline
            notes.append(_NEWLINE_ADDED)
        out += piece
        ends_lines = whole_lines
    if ends_lines and lines.final_newline and not out.endswith(b"\n"):
        out += newline
        notes.append(_NEWLINE_ADDED)
    return bytes(out)


def _bytes(number: int, text: str) -> bytes:
    if "\0" in text:
        raise _failure("EINVAL", number, "the text has a NUL character")
    return text.encode()


def _check_size(number: int, path: str, data: bytes, limits: ToolLimits) -> None:
    if len(data) > limits.file_bytes:
        raise _failure(
            "ETOOBIG", number, f"{shown_path(path)} would have {len(data)} bytes, more than {limits.file_bytes}"
        )


def _failure(code: Any, number: int, what: str, suggested_action: str | None = None) -> ToolFailure:
    return ToolFailure(code, f"edits.{number}: {what}", suggested_action)
