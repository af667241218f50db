"""list_files: the paths of a tree, with sizes, filtered, folded below a depth, and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from policy.errors import ToolFailure
from policy.paths import matches
from policy.tools import ListFiles
from runners.tools.files import check_pattern, entry_at
from runners.tools.observed import Observed, ToolLimits, shown_path
from runners.workspace.store import Entry, Store


def list_files(store: Store, tree: str, args: ListFiles, limits: ToolLimits) -> Observed:
    """`entries` in order of path: files with `size` in bytes, links with their target, folded folders with `files`.

    Raises ToolFailure ENOENT, EPATH or EINVAL.
    """
    check_pattern(args.glob)
    folder = args.path.rstrip("/")
    if folder and entry_at(store, tree, folder) is None:
        raise ToolFailure("ENOENT", f"there is no folder {shown_path(folder)}")
    entries: list[dict[str, Any]] = []
    total = used_bytes = 0
    for row in _rows(store, tree, folder, args):
        total += 1
        if len(entries) < args.max_entries and used_bytes < limits.text_bytes:
            entries.append(_shown(store, row))
            used_bytes += len(row[0]) + 40
    truncated = total > len(entries)
    return Observed({"entries": entries, "total": total, "truncated": truncated}, truncated)


Row = tuple[str, Entry | int]
"""A path with its entry, or a folded folder's path with the number of files below it."""


def _rows(store: Store, tree: str, folder: str, args: ListFiles) -> Iterator[Row]:
    """Walks in order of path, so that what is folded together comes in one run."""
    start = len(folder) + 1 if folder else 0
    fold, count = "", 0
    for entry in store.walk(tree, folder, submodules=True):
        if args.glob != "**" and not matches((args.glob,), entry.path):
            continue
        top = _folded(entry.path, start, args.depth)
        if count and top != fold:
            yield fold, count
            count = 0
        if top is None:
            yield entry.path, entry
        else:
            fold, count = top, count + 1
    if count:
        yield fold, count


def _folded(path: str, start: int, depth: int | None) -> str | None:
    """The folder in which `path` disappears when only `depth` levels are shown, or None if it is shown itself."""
    names = path[start:].split("/")
    if depth is None or len(names) <= depth:
        return None
    return path[:start] + "/".join(names[:depth]) + "/"


def _shown(store: Store, row: Row) -> dict[str, Any]:
    path, what = row
    if isinstance(what, int):
        return {"path": shown_path(path), "files": what}
    if what.kind == "submodule":
        return {"path": shown_path(path), "submodule": what.id}
    if what.kind == "symlink":
        return {"path": shown_path(path), "link": shown_path(store.blob(what.id).decode("utf-8", "surrogateescape"))}
    return {"path": shown_path(path), "size": store.blob_size(what.id)}
