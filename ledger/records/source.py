"""Where a job's code comes from: what a worker needs to have the base commit, on any host."""

from __future__ import annotations

from typing import Literal

from ledger.records.base import Record


class SourceRef(Record):
    """A repository as named by a batch file, made absolute.

    `kind` `git`: `location` is a path or an https, http, ssh or file URL of a git repository.
    `kind` `archive`: `location` is a path or URL of a .tar(.gz|.bz2|.xz)/.tgz/.zip file, `sha256` its digest.
    `kind` `folder`: `location` is a plain folder; its snapshot of submission time travels as a pack, `pack_sha256`,
    in the ledger's objects, so that a later change of the folder changes nothing.
    `kind` `pypi`: `location` is NAME==VERSION of a published package, `sha256` the digest of its source distribution.
    """

    kind: Literal["git", "archive", "folder", "pypi"]
    location: str
    sha256: str | None = None
    pack_sha256: str | None = None


class ResolvedBase(Record):
    """A base that was found: commit id (40 hex digits), its tree id, and remarks for the user (LFS, submodules)."""

    commit: str
    tree: str
    remarks: tuple[str, ...] = ()
