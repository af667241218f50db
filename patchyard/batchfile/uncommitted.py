"""What a work tree has that its commit has not, so that whoever submits is told that it is no part of the base.

libgit2 looks, since git itself would run what the repository's own configuration names to find out (a file system
monitor, filters), and a repository may be anybody's.
"""

from __future__ import annotations

from pathlib import Path

import pygit2

from ledger.records.source import SourceRef

_SHOWN = 5


def uncommitted(source: SourceRef, commit: str) -> tuple[str, ...]:
    """A remark if `source` is a work tree here whose HEAD is `commit`, and files of it are changed or new."""
    folder = Path(source.location)
    if source.kind != "git" or not folder.is_absolute() or not (folder / ".git").exists():
        return ()
    try:
        repository = pygit2.Repository(str(folder))
        if str(repository.head.target) != commit:
            return ()
        changed = sorted(repository.status(untracked_files="normal"))
    except (pygit2.GitError, OSError, ValueError):
        return ()  # it is only a remark, and the commit is there
    if not changed:
        return ()
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    which = f"{', '.join(changed[:_SHOWN])}{more}"
    return (f"what is not committed is no part of the base: {which}; commit it, if it should be",)
