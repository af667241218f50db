"""Finding the file that a path means, or saying which of the many ways it went wrong in."""

from __future__ import annotations

from ledger.errors import BadInput
from policy.errors import ToolFailure
from policy.paths import check_glob
from runners.tools.observed import ToolLimits, shown_path
from runners.workspace.errors import InvalidPath
from runners.workspace.store import Entry, Store


def entry_at(store: Store, tree: str, path: str) -> Entry | None:
    """What stands at `path`. Raises ToolFailure EPATH for what can be no path of a tree."""
    try:
        return store.entry(tree, path)
    except InvalidPath as wrong:
        raise ToolFailure("EPATH", wrong.message) from None


def file_at(store: Store, tree: str, path: str) -> Entry:
    """The regular file at `path`. Raises ToolFailure EPATH or ENOENT."""
    entry = entry_at(store, tree, path)
    if entry is None:
        raise ToolFailure("ENOENT", f"there is no file {shown_path(path)}")
    if entry.kind == "folder":
        raise ToolFailure("EPATH", f"{shown_path(path)} is a folder", "List it with list_files.")
    if entry.kind == "symlink":
        target = shown_path(store.blob(entry.id)[:500].decode("utf-8", "surrogateescape"))
        raise ToolFailure("EPATH", f"{shown_path(path)} is a symbolic link to {target}", "Use the path it points to.")
    if entry.kind == "submodule":
        raise ToolFailure("EPATH", f"{shown_path(path)} is a submodule, which is not part of this repository")
    return entry


def text_at(store: Store, tree: str, path: str, limits: ToolLimits) -> tuple[Entry, bytes]:
    """The text file at `path` with its bytes. Raises ToolFailure EPATH, ENOENT, ETOOBIG or EBINARY."""
    entry = file_at(store, tree, path)
    size = store.blob_size(entry.id)
    if size > limits.file_bytes:
        raise ToolFailure("ETOOBIG", f"{shown_path(path)} has {size} bytes, more than {limits.file_bytes}")
    data = store.blob(entry.id)
    if is_binary(data):
        raise ToolFailure("EBINARY", f"{shown_path(path)} is a binary file of {size} bytes")
    return entry, data


def is_binary(data: bytes) -> bool:
    """Whether `data` is no text: a NUL tells, as in git, but anywhere."""
    return b"\0" in data


def check_pattern(glob: str) -> None:
    """Raises ToolFailure EINVAL if `glob` is no pattern, or one that would take too long."""
    try:
        check_glob(glob)
    except BadInput as wrong:
        raise ToolFailure("EINVAL", f"glob: {wrong}") from None
