"""A credential in an address never reaches the ledger, the terminal or a file of ours: it is refused at submission."""

from __future__ import annotations

import pytest

from tests.integration.cli.conftest import HEAD, ONE, rows

SECRET = "gh0_s3cr3t"
DIGEST = "#sha256=" + "0" * 64
GIT = "git takes it from ~/.netrc, or use ssh with a key; PATCHYARD_CREDENTIALS is for publishing"
ARCHIVE = "download the archive and name the file; PATCHYARD_CREDENTIALS is for publishing"


@pytest.mark.parametrize(
    ("address", "shown", "remedy"),
    [
        (f"https://me:{SECRET}@git.example/x.git", "https://***@git.example/x.git", GIT),
        (f"https://{SECRET}@git.example/x", "https://***@git.example/x", GIT),
        (f"http://me:{SECRET}@git.example/x", "http://***@git.example/x", GIT),
        (f"ssh://git:{SECRET}@git.example/x", "ssh://***@git.example/x", GIT),
        (f"https://git.example/x?access_token={SECRET}", "https://git.example/x?***", GIT),
        (f"https://me:{SECRET}@files.example/x.tar.gz{DIGEST}", f"https://***@files.example/x.tar.gz{DIGEST}", ARCHIVE),
        (f"https://f.example/x.zip?X-Amz-Signature={SECRET}{DIGEST}", f"https://f.example/x.zip?***{DIGEST}", ARCHIVE),
        (f"HTTPS://me:p%40{SECRET}@git.example/x.git", "HTTPS://***@git.example/x.git", GIT),
    ],
)
def test_a_credential_in_the_address_of_a_source_is_refused(ledger, patchyard, place, address, shown, remedy):
    (place / "batch.yaml").write_text(HEAD + ONE.replace("repo: repo", f"repo: '{address}'"))
    refused = patchyard("submit", "batch.yaml")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == (
        f"patchyard: batch.yaml:8: repo {shown} carries a credential, which everybody who sees the ledger would have; "
        f"leave it out: {remedy}\n"
    )
    assert set(rows(ledger).values()) == {0}


@pytest.mark.parametrize("to", ["patch", "branch", "pull_request"])
@pytest.mark.parametrize("field", ["remote", "api"])
def test_so_is_one_in_the_address_of_a_publication_whatever_it_is(ledger, patchyard, place, to, field):
    publish = f"    publish: {{to: {to}, forge: github, {field}: 'https://me:{SECRET}@git.example/x'}}\n"
    (place / "batch.yaml").write_text(HEAD + ONE + publish)
    refused = patchyard("submit", "batch.yaml")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert f"publish.{field} https://***@git.example/x carries a credential" in refused.err
    assert "belongs in the file of PATCHYARD_CREDENTIALS" in refused.err
    assert SECRET not in refused.err
    assert set(rows(ledger).values()) == {0}


def test_a_setting_of_the_command_line_is_not_repeated_with_its_secret(patchyard):
    refused = patchyard("submit", "batch.yaml", "--set", f"defaults.publish.remote=https://me:{SECRET}@git.example/x")
    assert refused.status == 2
    assert "--set defaults.publish.remote=https://***@git.example/x: publish.remote" in refused.err
    assert SECRET not in refused.err


def test_users_without_a_secret_are_none(ledger, patchyard, place):
    for address in ("ssh://git@127.0.0.1:1/x", "git@127.0.0.1:x"):
        (place / "batch.yaml").write_text(HEAD + ONE.replace("repo: repo", f"repo: '{address}'"))
        assert "credential" not in patchyard("submit", "batch.yaml").err
