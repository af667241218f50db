"""Which paths may stand in a tree: git's own rules (`verify_path`, `fsck_tree`), applied before git sees them.

A path is a `str` with `/` between components; bytes that are not UTF-8 are carried as surrogate escapes, so that every
name of a POSIX file system survives. Refused are names that a later `git apply` or checkout on a user's machine could
take for `.git`, on NTFS and HFS+ too.
"""

from __future__ import annotations

import re

from runners.workspace.errors import InvalidPath

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
MAX_DEPTH = 200

# is_hfs_dotgit() of git: code points that HFS+ ignores in names.
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# is_ntfs_dotgit() of git: trailing spaces and dots and alternate streams do not make another name.
_NTFS_DOTGIT = re.compile(r"(?:\.git|git~1)[. ]*(?:[:\\].*)?\Z", re.IGNORECASE | re.DOTALL)
# is_ntfs_dotgitmodules(): as a link it would lead git's own reader away.
_DOTGITMODULES = re.compile(r"(?:\.gitmodules|gitmod~[1-4]|gi7eb[a-f0-9~]{1,3}\d?)[. ]*(?::.*)?\Z", re.IGNORECASE)


def decode_path(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def encode_path(path: str) -> bytes:
    """The bytes of `path`. Raises `InvalidPath` for a lone surrogate that stands for no byte."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidPath("bad_path", path) from None


def is_dotgit(name: str) -> bool:
    """Whether some file system would take the component `name` for `.git`."""
    plain = _HFS_IGNORED.sub("", name)
    return any(part.lower() == ".git" or _NTFS_DOTGIT.match(part) for part in plain.split("\\"))


def check_path(path: str, *, link: bool = False) -> bytes:
    """The bytes of a path that may stand in a tree; `link` when a symbolic link shall stand there.

    Raises `InvalidPath` for absolute paths, `..`, `.`, empty components, NUL, `.git` in any spelling, and for paths
    too long or too deep.
    """
    raw = encode_path(path)
    if path.startswith("/"):
        raise InvalidPath("absolute_path", path)
    names = path.split("/")
    if ".." in names:
        raise InvalidPath("escaping_path", path)
    if len(raw) > MAX_PATH_BYTES or len(names) > MAX_DEPTH or "\0" in path:
        raise InvalidPath("bad_path", path)
    for name in names:
        if name in ("", ".") or len(name) > MAX_NAME_BYTES or len(name.encode("utf-8", "surrogateescape")) > 255:
            raise InvalidPath("bad_path", path)
        if ("g" in name or "G" in name) and is_dotgit(name):
            raise InvalidPath("git_folder", path)
    if link and _DOTGITMODULES.match(names[-1]):
        raise InvalidPath("git_folder", path)
    return raw
