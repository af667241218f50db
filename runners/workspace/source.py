"""What a batch file may name as a repository, and what that means on the machine where it is read.

    repos/x.git   ../x   /abs/x   ~/x          a git repository (bare, work tree, linked work tree), or a plain folder
    https://…  http://…  ssh://…  user@host:path  file:///…      a git repository
    x.tar.gz#sha256=HEX   https://…/x.zip#sha256=HEX             an archive
    pypi:NAME==VERSION#sha256=HEX                                the source distribution of a published package

Names are made absolute, so that the ledger's record means the same in every process of the host.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

from ledger.records.source import SourceRef
from runners.workspace.download import file_sha256
from runners.workspace.errors import RepositoryMissing, SourceRefused, shown
from runners.workspace.git_source import is_git_folder
from runners.workspace.location import SCP_LIKE, URL, is_archive_name, redacted, url_path
from runners.workspace.mirrors import Mirrors, Resolution
from runners.workspace.pypi import REQUIREMENT

__all__ = ["Mirrors", "Resolution", "parse_source"]

_DIGEST = re.compile(r"(.*)#sha256=([0-9a-fA-F]{64})\Z", re.DOTALL)
_SPELLINGS = "a path, https://…, ssh://…, an archive with #sha256=…, or pypi:NAME==VERSION#sha256=…"


def parse_source(text: str, base_folder: Path) -> SourceRef:
    """The source that `text` names; relative paths start at `base_folder`.

    Raises `RepositoryMissing` when a path is not there, `SourceRefused` for what cannot be a source.
    """
    digest = _DIGEST.match(text)
    name, sha256 = (digest[1], digest[2].lower()) if digest else (text, None)
    if not name.strip() or any(ord(c) < 32 for c in name):
        raise SourceRefused("names no repository", where=shown(text) or "repo", remedy=f"give {_SPELLINGS}")
    if sha256 is None and "#sha256=" in text:
        raise SourceRefused("the sha256 is not 64 hex digits", where=redacted(shown(text)), remedy="correct it")
    if name.startswith("pypi:"):
        return _package(name.removeprefix("pypi:"), sha256)
    scheme = URL.match(name)
    if scheme is not None:
        return _url(name, scheme[1].lower(), sha256)
    path = (base_folder / Path(name).expanduser()).absolute()
    if SCP_LIKE.match(name) and not path.exists():
        return SourceRef(kind="git", location=name)
    return _path(path, sha256)


def _package(requirement: str, sha256: str | None) -> SourceRef:
    where = f"pypi:{shown(requirement)}"
    if not REQUIREMENT.match(requirement):
        raise SourceRefused("is not NAME==VERSION", where=where, remedy="write pypi:NAME==VERSION#sha256=HEX")
    if sha256 is None:
        remedy = "add #sha256= and the digest of its source distribution, from the index's page"
        raise SourceRefused("has no digest", where=where, remedy=remedy)
    return SourceRef(kind="pypi", location=requirement, sha256=sha256)


def _url(url: str, scheme: str, sha256: str | None) -> SourceRef:
    where = redacted(url)
    if scheme == "file":
        parts = urllib.parse.urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise SourceRefused("a file URL of another host", where=where, remedy="use file:///PATH")
        return _path(Path(url_path(url)), sha256)
    if scheme not in ("http", "https", "ssh"):
        raise SourceRefused(f"{scheme} is not used here", where=where, remedy=f"give {_SPELLINGS}")
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        host = ""
    if not host or host.startswith("-"):
        raise SourceRefused("names no host", where=where, remedy="correct the address")
    if sha256 is not None and scheme != "ssh":
        return SourceRef(kind="archive", location=url, sha256=sha256)
    if scheme != "ssh" and is_archive_name(url_path(url)):
        raise SourceRefused("an archive without its digest", where=where, remedy="add #sha256=HEX")
    return SourceRef(kind="git", location=url)


def _path(path: Path, sha256: str | None) -> SourceRef:
    where = shown(str(path))
    if path.is_dir():
        if sha256 is not None:
            raise SourceRefused("a folder has no sha256", where=where, remedy="leave #sha256= out")
        kind = "git" if is_git_folder(path) else "folder"
        return (
            SourceRef(kind="git", location=str(path)) if kind == "git" else SourceRef(kind="folder", location=str(path))
        )
    if not path.is_file():
        raise RepositoryMissing("no such repository, folder or archive", where=where, remedy="correct the path")
    if sha256 is None:
        raise SourceRefused("an archive without its digest", where=where, remedy=f"add #sha256={file_sha256(path)}")
    return SourceRef(kind="archive", location=str(path), sha256=sha256)
