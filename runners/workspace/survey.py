"""A base tree is looked over once, when it is submitted: may it be worked on, and what should the user know?"""

from __future__ import annotations

from runners.workspace.errors import InvalidPath, RefusedWorkspace, SourceRefused, shown
from runners.workspace.paths import check_path, decode_path
from runners.workspace.store import SUBMODULE, SYMLINK, Store
from runners.workspace.tarball import TreeLimits

# A Git LFS pointer is a text of less than 1024 bytes that begins so (the specification of Git LFS).
_LFS_HEAD = b"version https://git-lfs.github.com/spec/"
_LFS_BYTES = range(len(_LFS_HEAD), 1024)


def survey_tree(store: Store, tree: str, limits: TreeLimits, *, where: str) -> tuple[str, ...]:
    """Remarks for the user on the base `tree`: one line on LFS pointers and one on submodules, if there are any.

    Raises `SourceRefused` when the tree holds paths that cannot be worked with, or is too large; `where` names it.
    """
    pointers, submodules = [], []
    files = size = 0
    try:
        for raw_path, mode, raw_id in store.raw_walk(tree):
            path = decode_path(raw_path)
            files += 1
            check_path(path, link=mode == SYMLINK)
            if mode == SUBMODULE:
                submodules.append(path)
                continue
            blob_bytes = store.blob_size(raw_id.hex())
            size += blob_bytes
            _check_size(files, blob_bytes, size, limits, path)
            if blob_bytes in _LFS_BYTES and store.blob(raw_id.hex()).startswith(_LFS_HEAD):
                pointers.append(path)
    except (InvalidPath, RefusedWorkspace) as error:
        raise SourceRefused(f"cannot be worked on: {error.message}", where=where) from error
    return tuple(
        f"{_counted(paths, noun)}: {told}"
        for paths, noun, told in (
            (pointers, "Git LFS pointer", "jobs see the pointers, not the files behind them"),
            (submodules, "submodule", "jobs see empty folders there"),
        )
        if paths
    )


def _check_size(files: int, blob_bytes: int, size: int, limits: TreeLimits, path: str) -> None:
    if files > limits.max_files:
        raise RefusedWorkspace("too_many_files", path)
    if blob_bytes > limits.max_file_bytes or size > limits.max_bytes:
        raise RefusedWorkspace("too_many_bytes", path)


def _counted(paths: list[str], noun: str) -> str:
    names = ", ".join(shown(path) for path in paths[:3])
    more = ", …" if len(paths) > 3 else ""
    return f"{len(paths)} {noun}{'s' if len(paths) > 1 else ''} ({names}{more})"
