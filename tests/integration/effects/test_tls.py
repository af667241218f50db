"""https: a remote that proves who it is gets the push and the credential; one that does not gets neither."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.effects.credentials import Credential, Credentials
from runners.effects.errors import RemoteUnreachable
from runners.effects.git import Git
from runners.effects.http import JsonApi
from runners.effects.remote import parse_remote
from tests.fixtures.git_remote import BareRemote, HttpRemotes, http_remotes, run_git

_REF = "refs/heads/patchyard/fix"


class _OpenGate:
    def closed_seconds(self, forge: str) -> float:
        return 0.0

    def close(self, forge: str, seconds: float, why: str) -> None:
        raise AssertionError(why)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of loopback and its key, signed by nobody else."""
    folder = tmp_path_factory.mktemp("tls")
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


@pytest.fixture
def work(tmp_path: Path) -> tuple[Path, str]:
    """A repository with one commit, and that commit."""
    path = tmp_path / "work"
    run_git("init", "--quiet", "--initial-branch=main", str(path))
    author = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    run_git(*author, "commit", "--quiet", "--allow-empty", "-m", "first", cwd=path)
    return path, run_git("rev-parse", "HEAD", cwd=path)


@pytest.fixture
def remotes(tmp_path: Path, certificate: Path, work: tuple[Path, str]) -> Iterator[HttpRemotes]:
    """A remote over TLS that lets one token in."""
    BareRemote.create(tmp_path / "served" / "fix.git", head=work[1], source=work[0])
    with http_remotes(tmp_path / "served", ("x-access-token", "s3cret"), certificate=certificate) as served:
        yield served


def _git(remotes: HttpRemotes) -> Git:
    return Git(Credentials({remotes.host: Credential(token="s3cret")}), timeout_seconds=60)


def test_a_branch_is_pushed_to_a_remote_whose_certificate_is_known(
    remotes: HttpRemotes,
    certificate: Path,
    work: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate.with_name("cert.pem")))
    remote, git = parse_remote(remotes.url("fix.git")), _git(remotes)
    assert git.ref_at(remote, _REF) is None
    git.push(work[0] / ".git", remote, work[1], _REF, None)
    assert git.ref_at(remote, _REF) == work[1]
    assert BareRemote(tmp_path / "served" / "fix.git").times_set(_REF) == 1


def test_a_remote_whose_certificate_nobody_vouches_for_gets_nothing(
    remotes: HttpRemotes, work: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    remote, git = parse_remote(remotes.url("fix.git")), _git(remotes)
    with pytest.raises(RemoteUnreachable, match="certificate"):
        git.ref_at(remote, _REF)
    assert remotes.seen == []
    assert BareRemote(tmp_path / "served" / "fix.git").refs() == {"refs/heads/main"}


def test_an_api_whose_certificate_nobody_vouches_for_gets_no_token(
    remotes: HttpRemotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    api = JsonApi(
        f"https://{remotes.host}/api",
        forge="x",
        gate=_OpenGate(),
        headers={"Authorization": "s3cret"},
        secrets=["s3cret"],
    )
    with pytest.raises(RemoteUnreachable, match="certificate") as caught:
        api.send("POST", "/comments", {"text": "x"})
    assert "s3cret" not in caught.value.message
    assert remotes.seen == []
