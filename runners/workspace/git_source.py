"""What a git source has: which commit a name means, and that commit's objects brought into a mirror.

A mirror gets one commit at a time, without its history: less to carry, and nothing in it tells of a fix to come. Only
servers that cannot give a single commit (the dumb HTTP protocol, old ones) are copied with all their branches.
"""

from __future__ import annotations

import re
from pathlib import Path

from runners.workspace.errors import CommitMissing, RepositoryMissing, shown
from runners.workspace.git_remote import Git, GitFailed
from runners.workspace.location import redacted

FULL_ID = re.compile(r"[0-9a-f]{40}\Z")
_SHORT_ID = re.compile(r"[0-9a-fA-F]{4,40}\Z")
# Names of branches, tags and commits, and steps back from them; nothing that git would read as an option or a path.
_REVISION = re.compile(r"(?!.*(?:\.\.|@\{|//))([A-Za-z0-9_][A-Za-z0-9._/+@-]*)((?:[~^][0-9]*)*)\Z")
_NO_SINGLE_COMMIT = ("unadvertised object", "shallow capabilities", "does not support shallow", "no such remote ref")
_NO_SUCH_REVISION = ("single revision", "unknown revision", "bad object", "bad revision")
_NOT_THERE = ("not our ref", "couldn't find remote ref", "bad object")


def is_git_folder(path: Path) -> bool:
    """Whether `path` is a git repository: a work tree (linked ones too) or a bare one."""
    return git_dir_of(path) is not None


def git_dir_of(path: Path) -> Path | None:
    """What git takes as GIT_DIR for the repository at `path`, or None when it is none."""
    if (path / ".git").exists():
        return path / ".git"
    if (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir():
        return path
    return None


def find_commit(git: Git, location: str, name: str) -> str:
    """The full id of the commit that `name` means at `location`, or, when only a copy of all of it could tell, what to
    ask that copy for.

    Raises `CommitMissing`, `RepositoryMissing`, `GitFailed`.
    """
    revision = _REVISION.match(name)
    if not revision:
        remedy = "give a commit, a branch, a tag or HEAD"
        raise CommitMissing("is no name of a commit", where=f"base {shown(name)}", remedy=remedy)
    if location.startswith("/"):
        return _find_locally(git, location, name)
    start, steps = revision.groups()
    if FULL_ID.match(start.lower()):
        return start.lower() + steps
    return (_find_advertised(git, location, start) or start) + steps


def _find_locally(git: Git, location: str, name: str) -> str:
    git_dir = git_dir_of(Path(location))
    if git_dir is None:
        raise RepositoryMissing("no git repository there", where=location, remedy="correct the path")
    if git.run("rev-parse", "--show-object-format", git_dir=git_dir).strip() != "sha1":
        raise _not_sha1(location)
    return rev_parse(git, git_dir, location, name)


def _not_sha1(location: str) -> RepositoryMissing:
    remedy = "give a repository in git's SHA-1 format"
    return RepositoryMissing("its object format is not SHA-1", where=redacted(location), remedy=remedy)


def rev_parse(git: Git, git_dir: Path, location: str, name: str) -> str:
    """The commit that `name` means in the repository `git_dir`, a copy of `location`. Raises `CommitMissing`."""
    try:
        found = git.run("rev-parse", "--verify", f"{name}^{{commit}}", git_dir=git_dir).strip()
    except GitFailed as error:
        if "ambiguous" in error.said:
            raise missing(name, location, "is ambiguous", "give more digits") from None
        if not any(words in error.said for words in _NO_SUCH_REVISION):
            raise
        raise missing(name, location) from None
    return found


def missing(name: str, location: str, what: str = "no such commit", remedy: str = "") -> CommitMissing:
    remedy = remedy or ("make a first commit" if name == "HEAD" else "give a commit that it has, or push it there")
    return CommitMissing(f"{what}: {name}", where=redacted(location), remedy=remedy)


def _find_advertised(git: Git, location: str, name: str) -> str | None:
    """A branch, tag or HEAD among what the server advertises; None for what may be a short id."""
    listed = git.run("ls-remote", "--quiet", "--", location)
    refs = {ref: oid for oid, _, ref in (line.partition("\t") for line in listed.splitlines())}
    if any(len(oid) != 40 for oid in refs.values()):
        raise _not_sha1(location)
    for ref in (name, f"refs/tags/{name}", f"refs/heads/{name}"):
        found = refs.get(ref + "^{}") or refs.get(ref)
        if found is not None:
            return found
    if _SHORT_ID.match(name):
        return None
    raise missing(name, location)


def fetch_commit(git: Git, location: str, commit: str, git_dir: Path) -> None:
    """Bring the objects of `commit` into the bare repository `git_dir`. Raises `CommitMissing`, `GitFailed`."""
    try:
        git.run(*_FETCH, "--depth=1", "--", location, f"+{commit}:refs/patchyard/{commit}", git_dir=git_dir)
    except GitFailed as error:
        if any(words in error.said for words in _NOT_THERE):
            raise missing(commit, location) from None
        if not any(words in error.said for words in _NO_SINGLE_COMMIT):
            raise
        fetch_all(git, location, git_dir)


def fetch_all(git: Git, location: str, git_dir: Path) -> None:
    """Bring all branches and tags of `location` into `git_dir`. Raises `GitFailed`."""
    whole = ("--unshallow",) if (git_dir / "shallow").exists() else ()
    refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    git.run(*_FETCH, *whole, "--", location, *refs, git_dir=git_dir)


_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-gc")
