"""Sources without history get a commit of their own: same bytes, same commit id, on every host and every day."""

from __future__ import annotations

from runners.workspace.store import Store
from runners.workspace.tarball import FIXED_TIME_SECONDS

_AUTHOR = f"patchyard <patchyard@localhost> {FIXED_TIME_SECONDS} +0000"


def commit_snapshot(store: Store, tree: str) -> str:
    """The id of the one commit that stands for `tree` as a snapshot; written if it is not there."""
    text = f"tree {tree}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\nSnapshot of a source without history\n"
    return store.add_object(1, text.encode())
