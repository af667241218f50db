"""show_diff: what was changed since the base commit, as a patch, cut between files where it is too long."""

from __future__ import annotations

from typing import Any

from policy.paths import matches
from policy.tools import ShowDiff
from runners.tools.files import check_pattern
from runners.tools.observed import Observed, ToolLimits, shown_path, shown_text
from runners.workspace.diff import ChangedPath, changed_paths, shown_patch
from runners.workspace.store import Store


def show_diff(store: Store, base: str, tree: str, args: ShowDiff, limits: ToolLimits) -> Observed:
    """`files` with how each changed, and `patch`, which holds the whole patches of as many files as fit.

    Raises ToolFailure EINVAL for a glob that is none.
    """
    check_pattern(args.glob)
    all_changes = changed_paths(store, base, tree)
    changes = [change for change in all_changes if matches((args.glob,), change.path)]
    wanted = tree if len(changes) == len(all_changes) else _only(store, base, changes)
    patch = shown_patch(store, base, wanted)
    shown = _cut(patch, limits.diff_bytes)
    files = [{"path": shown_path(change.path), "change": change.kind} for change in changes[: limits.diff_files]]
    truncated = len(shown) < len(patch) or len(files) < len(changes)
    data: dict[str, Any] = {
        "files": files,
        "files_changed": len(changes),
        "patch": shown_text(shown),
        "truncated": truncated,
    }
    return Observed(data, truncated)


def _only(store: Store, base: str, changes: list[ChangedPath]) -> str:
    """The base with `changes` alone."""
    entries = {
        change.path: (change.new_mode, change.new_id) if change.kind != "deleted" else None for change in changes
    }
    return store.with_entries(base, entries, replace=True)


def _cut(patch: bytes, limit_bytes: int) -> bytes:
    """The patches of the first files, as many as fit; a part of the first where not even that one does."""
    if len(patch) <= limit_bytes:
        return patch
    end = patch.rfind(b"\ndiff --git ", 0, limit_bytes)
    return patch[: end + 1] if end >= 0 else patch[:limit_bytes]
