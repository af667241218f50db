"""What can go wrong with a workspace or its source, each with the fields a caller decides on.

On the submitting side everything is `BadInput`: one line that says what, where and the remedy. On a worker a source
that does not answer is `Temporary`; a source that answers with something else than was promised is `Permanent`.
"""

from __future__ import annotations

from ledger.errors import BadInput, Permanent, Temporary


def shown(path: str) -> str:
    """`path` for one line of a message: control characters and undecodable bytes escaped, bounded in length."""
    text = path.encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]}"


class InvalidPath(Permanent):
    """This path cannot stand in a tree."""

    def __init__(self, code: str, path: str) -> None:
        """`code`: `absolute_path`, `escaping_path`, `git_folder` or `bad_path`."""
        self.code, self.path = code, path
        super().__init__(f"{_WHY.get(code, code)}: {shown(path)}")


class PathConflict(Permanent):
    """A file stands where a folder is needed, or a folder where a file is."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{shown(path)} is there already as something else (a file, a folder or a submodule)")


class RefusedWorkspace(Permanent):
    """What came out of the sandbox, an archive or a folder cannot become a tree."""

    def __init__(self, code: str, path: str = "") -> None:
        """`code` is a key of `_WHY`; `path` is the first path that shows it, "" when it is about the whole."""
        self.code, self.path = code, path
        why = _WHY.get(code, code)
        super().__init__(f"{why}: {shown(path)}" if path else why)


class ObjectUnreadable(Temporary):
    """An object is missing from the mirror or damaged in it: discard the mirror and open it again."""

    def __init__(self, object_id: str) -> None:
        self.object_id = object_id
        super().__init__(f"object {object_id} is missing or unreadable in the mirror")


class StoreUnusable(Temporary):
    """This folder is not a usable bare repository."""


class PackRefused(Permanent):
    """These bytes are not a pack that patchyard wrote, or it is too large, or its trees are not complete."""


class RepoUnavailable(Temporary):
    """The repository's source does not answer now."""


class RepositoryMissing(BadInput):
    """The repository is not there."""


class CommitMissing(BadInput):
    """The repository has no such commit."""


class WrongDigest(BadInput):
    """The bytes have another sha256 than was promised."""


class SourceRefused(BadInput):
    """The source is there, and its content cannot be taken."""


_WHY = {
    "absolute_path": "an absolute path",
    "escaping_path": "a path with '..'",
    "git_folder": "a path that git would take for its own folder",
    "bad_path": "a path that cannot stand in a git tree",
    "fifo": "a named pipe",
    "device": "a device",
    "socket": "a socket",
    "unknown_type": "an entry of an unknown type",
    "hard_link_out": "a hard link to something outside of what was packed",
    "link_out": "a symbolic link that points out of the workspace",
    "bad_link": "a symbolic link without a usable target",
    "too_many_links": "symbolic links too many or too tangled to follow",
    "too_many_files": "too many files",
    "too_many_bytes": "too many bytes",
    "duplicate_name": "the same name twice",
    "name_conflict": "one name for a file and for a folder",
    "inside_submodule": "a file inside a submodule's folder",
    "truncated": "the tar ends before its end mark",
    "malformed": "the tar is malformed",
    "slow_ignore": "the .gitignore takes too long to evaluate",
    "unreadable": "a file that cannot be read",
    "encrypted": "an encrypted entry",
    "empty": "no files in it",
}
