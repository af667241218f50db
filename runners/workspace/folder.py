"""A folder of the submitting user becomes members of a tree: acceptance files, and sources that are no repository.

Runs on the user's machine, on the user's own files; it follows no symbolic link, and what cannot travel (devices,
`.git`, links that lead out, too much) is told as bad input with the file's path. Caches, and what the rules given
name, are left out as git would.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from runners.workspace.collect import leads_out
from runners.workspace.errors import InvalidPath, RefusedWorkspace, SourceRefused, shown
from runners.workspace.ignore import IgnoreRules
from runners.workspace.paths import check_path
from runners.workspace.tarball import Member, TreeLimits


def folder_members(
    folder: Path, limits: TreeLimits, rules: IgnoreRules, without: Path | None = None
) -> Iterator[Member]:
    """The files and links below `folder`, sorted, but not what is in the folder `without`.

    Raises `SourceRefused` with the path of what cannot be taken.
    """
    links: dict[str, str] = {}
    files_left, bytes_left = limits.max_files, limits.max_bytes
    for path, found in _walk(folder, "", rules, without):
        files_left -= 1
        bytes_left -= found.st_size
        if files_left < 0 or bytes_left < 0 or found.st_size > limits.max_file_bytes:
            raise _refused("too_many_files" if files_left < 0 else "too_many_bytes", folder / path)
        member = member_of(folder, path, found)
        if member.kind == "symlink":
            links[path] = member.target
        yield member
    for path in links:
        if leads_out(links, path):
            raise _refused("link_out", folder / path)


def member_of(folder: Path, path: str, found: os.stat_result) -> Member:
    """The file or link `path` below `folder`, as `found` by lstat. Raises `SourceRefused`."""
    is_link = stat.S_ISLNK(found.st_mode)
    _check_name(folder, path, link=is_link)
    if is_link:
        return Member(path, "symlink", target=os.readlink(folder / path))
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
        raise _refused(kinds.get(stat.S_IFMT(found.st_mode), "device"), folder / path)
    try:
        handle = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            data = file.read(found.st_size + 1)
    except OSError as error:
        raise _unreadable(folder / path, error) from error
    if len(data) > found.st_size:
        raise SourceRefused("grows while it is read", where=shown(str(folder / path)), remedy="stop what writes it")
    return Member(path, "file", executable=bool(found.st_mode & 0o100), data=data)


def gitignore_of(folder: Path) -> IgnoreRules:
    """The rules of the `.gitignore` at the top of `folder`, and the caches that nobody wants."""
    try:
        return IgnoreRules((folder / ".gitignore").read_bytes())
    except OSError:
        return IgnoreRules()


def _walk(folder: Path, lead: str, rules: IgnoreRules, without: Path | None) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(folder / lead), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise _unreadable(folder / lead, error) from error
    for entry in entries:
        path = lead + entry.name
        if not entry.is_dir(follow_symlinks=False):
            if not rules.ignores(path):
                yield path, entry.stat(follow_symlinks=False)
        elif not rules.ignores_folder(path) and (without is None or not without.samefile(entry.path)):
            _check_name(folder, path, link=False)
            yield from _walk(folder, path + "/", rules, without)


def _check_name(folder: Path, path: str, *, link: bool) -> None:
    try:
        check_path(path, link=link)
    except InvalidPath as error:
        raise _refused(error.code, folder / path) from error


def _unreadable(path: Path, error: OSError) -> SourceRefused:
    return SourceRefused(f"cannot be read ({error.strerror})", where=shown(str(path)), remedy="check its rights")


def _refused(code: str, where: Path) -> SourceRefused:
    why = RefusedWorkspace(code).message
    return SourceRefused(f"{why} cannot be part of a workspace", where=shown(str(where)), remedy="leave it out")
