from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ledger.errors import BadInput
from ledger.records.source import SourceRef
from runners.workspace.location import redacted
from runners.workspace.source import parse_source
from tests.unit.workspace.trees import git

HEX = "ab" * 32


@pytest.fixture
def base(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "--bare", "repos/bare.git")
    git(tmp_path, "init", "-q", "tree")
    (tmp_path / "plain/inner").mkdir(parents=True)
    (tmp_path / "x.tar.gz").write_bytes(b"archive")
    (tmp_path / "tree/sub").mkdir()
    return tmp_path


def test_paths_are_told_apart_and_made_absolute(base: Path) -> None:
    assert parse_source("repos/bare.git", base) == SourceRef(kind="git", location=str(base / "repos/bare.git"))
    assert parse_source("./tree", base).kind == "git"
    assert parse_source((base / "tree").as_uri(), Path("/")) == SourceRef(kind="git", location=str(base / "tree"))
    assert parse_source("plain", base) == SourceRef(kind="folder", location=str(base / "plain"))
    assert parse_source("tree/sub", base).kind == "folder"
    archive = SourceRef(kind="archive", location=str(base / "x.tar.gz"), sha256=HEX)
    assert parse_source(f"x.tar.gz#sha256={HEX.upper()}", base) == archive
    assert parse_source("~", base).location == str(Path.home())


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/x.git",
        "http://example.org/x",
        "ssh://git@example.org:22/x.git",
        "git@example.org:team/x.git",
        "host:x",
    ],
)
def test_addresses_are_git_repositories(base: Path, text: str) -> None:
    assert parse_source(text, base) == SourceRef(kind="git", location=text)


def test_archives_and_packages_come_with_their_digest(base: Path) -> None:
    url = "https://example.org/a/x.zip"
    assert parse_source(f"{url}#sha256={HEX}", base) == SourceRef(kind="archive", location=url, sha256=HEX)
    odd = "https://example.org/download?id=7"
    assert parse_source(f"{odd}#sha256={HEX}", base) == SourceRef(kind="archive", location=odd, sha256=HEX)
    assert parse_source(f"pypi:Some.Thing==1.0.post1#sha256={HEX}", base) == SourceRef(
        kind="pypi", location="Some.Thing==1.0.post1", sha256=HEX
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nowhere", "{base}/nowhere: no such repository, folder or archive; correct the path"),
        ("", "repo: names no repository; give "),
        ("a\nb", "a\\nb: names no repository; give "),
        ("x.tar.gz", "{base}/x.tar.gz: an archive without its digest; add #sha256={digest}"),
        (
            "https://example.org/x.tar.gz",
            "https://example.org/x.tar.gz: an archive without its digest; add #sha256=HEX",
        ),
        ("https://u:pw@example.org/x.zip?token=t", "https://***@example.org/x.zip?***: an archive without"),
        ("x.tar.gz#sha256=12", "x.tar.gz#sha256=12: the sha256 is not 64 hex digits; correct it"),
        (f"plain#sha256={HEX}", "{base}/plain: a folder has no sha256; leave #sha256= out"),
        ("pypi:thing==1.0", "pypi:thing==1.0: has no digest; add #sha256= and the digest"),
        (f"pypi:thing>=1.0#sha256={HEX}", "pypi:thing>=1.0: is not NAME==VERSION; write pypi:NAME==VERSION#sha256=HEX"),
        (f"pypi:../x==1#sha256={HEX}", "pypi:../x==1: is not NAME==VERSION"),
        ("git://example.org/x", "git://example.org/x: git is not used here; give "),
        ("ftp://example.org/x.zip", "ftp://example.org/x.zip: ftp is not used here; give "),
        ("ext::sh -c id", "{base}/ext::sh -c id: no such repository"),
        ("ssh://-oProxyCommand=id/x", "ssh://-oProxyCommand=id/x: names no host; correct the address"),
        ("-oProxyCommand=id:x", "{base}/-oProxyCommand=id:x: no such repository"),
        ("file://other/x", "file://other/x: a file URL of another host; use file:///PATH"),
    ],
)
def test_what_is_no_source_is_one_clear_line(base: Path, text: str, line: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_source(text, base)
    digest = hashlib.sha256(b"archive").hexdigest()
    assert error.value.message.startswith(line.format(base=base, digest=digest))
    assert "\n" not in error.value.message


def test_secrets_in_addresses_are_masked() -> None:
    text = "fatal: 'https://user:p%40ss@host/x?access_token=abc' and ssh://key@h/y failed"
    assert redacted(text) == "fatal: 'https://***@host/x?***' and ssh://***@h/y failed"
