"""Acceptance files: packed where the user is, laid over a tree where the verifier is.

What is laid over wins, whatever the agent left at those paths: a folder replaces a file or a link of the same name,
so that nothing in the tree can lead acceptance files elsewhere.
"""

from __future__ import annotations

import io
from pathlib import Path

from runners.workspace.collect import Collector, check_links
from runners.workspace.errors import RepositoryMissing, SourceRefused, shown
from runners.workspace.folder import folder_members, member_of
from runners.workspace.ignore import IgnoreRules
from runners.workspace.paths import encode_path
from runners.workspace.store import Store
from runners.workspace.tarball import END, Member, TreeLimits, file_member, read_members, symlink_member

OVERLAY_LIMITS = TreeLimits(
    max_files=5_000, max_bytes=32 * 1024 * 1024, max_file_bytes=16 * 1024 * 1024, max_links=1_000
)


class OverlayMissing(RepositoryMissing):
    """The acceptance files are not there."""


def overlay_tar(path: Path, limits: TreeLimits = OVERLAY_LIMITS) -> bytes:
    """A deterministic tar of the files below the folder `path`, or of the one file `path` under its own name.

    Caches are left out. Raises `OverlayMissing`, and `SourceRefused` for `..` in `path`, symbolic links that lead out,
    devices, `.git`, and for too much.
    """
    if ".." in path.parts:
        raise SourceRefused("a path with '..'", where=shown(str(path)), remedy="name a folder beside the batch file")
    if path.is_symlink() or not path.exists():
        raise OverlayMissing("no such file or folder", where=shown(str(path)), remedy="make it, or correct the path")
    if path.is_dir():
        members = list(folder_members(path, limits, IgnoreRules()))
    else:
        found = path.lstat()
        if found.st_size > limits.max_file_bytes:
            raise SourceRefused(f"larger than {limits.max_file_bytes} bytes", where=shown(str(path)))
        members = [member_of(path.parent, path.name, found)]
    if not members:
        raise OverlayMissing("no files in it", where=shown(str(path)), remedy="put the acceptance tests there")
    return b"".join(part for member in members for part in _packed(member)) + END


def _packed(member: Member) -> tuple[bytes, ...]:
    path = encode_path(member.path)
    if member.kind == "symlink":
        return (symlink_member(path, encode_path(member.target)),)
    return file_member(path, member.data, executable=member.executable)


def lay_over(store: Store, tree: str, tar: bytes, limits: TreeLimits = OVERLAY_LIMITS) -> str:
    """The id of `tree` with the files of `tar` in place of whatever stood at their paths.

    Raises `RefusedWorkspace`, `ObjectUnreadable`.
    """
    collector = Collector(store, limits)
    collector.take(read_members(io.BytesIO(tar), limits))
    check_links(collector.links)
    return store.with_entries(tree, collector.entries, replace=True)
