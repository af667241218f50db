"""What is refused before anything is sent: addresses, names, credentials and targets that cannot be right."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import BadInput
from ledger.records.publish import Publish
from ledger.records.source import SourceRef
from runners.effects.branch import branch_name
from runners.effects.credentials import Credential, Credentials
from runners.effects.errors import CredentialMissing, OutcomeUnknown
from runners.effects.git import Git
from runners.effects.remote import checked_api, parse_remote, safe_to_show
from runners.effects.target import complete_publish
from tests.fixtures.git_remote import run_git
from tests.integration.effects.worlds import HttpBranchWorld, OpenGate, World, effect_from

GIT = SourceRef(kind="git", location="https://github.com/acme/linkcheck.git")


@pytest.mark.parametrize(
    ("text", "url", "host", "repository"),
    [
        ("https://github.com/acme/x.git", "https://github.com/acme/x.git", "github.com", "acme/x"),
        ("https://GitHub.com:443/acme/x", "https://github.com/acme/x", "github.com", "acme/x"),
        ("https://git.example:8443/a/b/c.git", "https://git.example:8443/a/b/c.git", "git.example:8443", "a/b/c"),
        ("git@github.com:acme/x.git", "ssh://git@github.com/acme/x.git", "github.com", "acme/x"),
        ("ssh://me@host.example:2222/x.git", "ssh://me@host.example:2222/x.git", "host.example:2222", "x"),
        ("/srv/git/x.git", "/srv/git/x.git", "", "srv/git/x"),
        ("file:///srv/x.git", "file:///srv/x.git", "", "srv/x"),
        ("http://127.0.0.1:3000/a/b.git", "http://127.0.0.1:3000/a/b.git", "127.0.0.1:3000", "a/b"),
        ("https://[::1]:8080/a/b", "https://[::1]:8080/a/b", "[::1]:8080", "a/b"),
    ],
)
def test_a_remote_is_taken_apart(text: str, url: str, host: str, repository: str) -> None:
    remote = parse_remote(text)
    assert (remote.url, remote.host, remote.repository) == (url, host, repository)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no git remote"),
        ("relative/path", "no git remote"),
        ("--upload-pack=touch /tmp/x", "no git remote"),
        ("ext::sh -c id", "no git remote"),
        ("ext::sh", "no git remote"),
        ("git://example.org/x.git", "cannot|pushed"),
        ("ftp://example.org/x.git", "pushed"),
        ("https://me:hunter2@example.org/x.git", "carries a credential"),
        ("https://token@example.org/x.git", "carries a credential"),
        ("http://example.org/x.git", "not encrypted"),
        ("ssh://-oProxyCommand=id@example.org/x", "no git remote"),
        ("ssh://-oProxyCommand=id/x", "pushed"),
        ("-oProxyCommand=id:x", "no git remote"),
        ("https://example.org/", "names no repository"),
        ("https://example.org/x.git?a=b", "names no repository"),
        ("https://exa\nmple.org/x.git", "no git remote"),
        ("https://example.org:notaport/x", "no git remote"),
        ("file://host/share/x.git", "pushed"),
    ],
)
def test_a_remote_that_cannot_be_right_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        parse_remote(text, where="batch.yaml:3: publish.remote")
    assert str(refused.value).startswith("batch.yaml:3: publish.remote: ")
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("template", "job", "expected"),
    [
        ("patchyard/{batch}/{job}-{key}", "nested-links", "patchyard/b.1/nested-links-0a1b2c3d"),
        ("{job}", "a..b.lock", "a-.b-lock"),
        ("x-{job}", ".hidden", "x--hidden"),
        ("x/{job}", "-", "x/-"),
        ("fix/{key}", "j", "fix/0a1b2c3d"),
    ],
)
def test_a_branch_is_named_so_that_git_takes_it(template: str, job: str, expected: str) -> None:
    name = branch_name(template, batch="b.1", job=job, key="0a1b2c3d" * 8)
    assert name == expected
    run_git("check-ref-format", f"refs/heads/{name}")


@pytest.mark.parametrize(
    "template",
    ["", "a b", "a..b", "/a", "a/", "a//b", "a~1", "a^", "a:b", "a.lock", "a@{1}", "-a", "HEAD", "x" * 201, "{issue}"],
)
def test_a_name_that_git_refuses_is_refused_at_submission(template: str) -> None:
    with pytest.raises(BadInput):
        branch_name(template, batch="b", job="j", key="0" * 64)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://api.example.org", "not encrypted"),
        ("https://me:hunter2@api.example.org", "no address"),
        ("ftp://x", "no address"),
        ("https://x/?a=b", "no address"),
        ("nothing", "no address"),
        ("https://[::", "no address"),
    ],
)
def test_an_api_that_would_leak_a_token_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        checked_api(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("stated", "source", "completed"),
    [
        ({}, GIT, {"to": "patch", "remote": None}),
        ({"to": "branch"}, GIT, {"remote": "https://github.com/acme/linkcheck.git", "api": None}),
        (
            {"to": "pull_request"},
            GIT,
            {"forge": "github", "api": "https://api.github.com", "repository": "acme/linkcheck"},
        ),
        (
            {"to": "pull_request", "remote": "ssh://git@git.example:2222/group/sub/x.git", "forge": "gitlab"},
            GIT,
            {"api": "https://git.example/api/v4", "repository": "group/sub/x"},
        ),
        (
            {"to": "pull_request", "remote": "git@codeberg.org:a/b.git"},
            GIT,
            {"forge": "gitea", "api": "https://codeberg.org/api/v1"},
        ),
        (
            {"to": "pull_request", "remote": "https://ghe.example/a/b", "forge": "github"},
            GIT,
            {"api": "https://ghe.example/api/v3"},
        ),
    ],
)
def test_a_target_is_made_complete(stated: dict[str, Any], source: SourceRef, completed: dict[str, Any]) -> None:
    publish = complete_publish(Publish.model_validate(stated), source, batch="b", job="j")
    assert {name: getattr(publish, name) for name in completed} == completed


@pytest.mark.parametrize(
    ("stated", "source", "said"),
    [
        ({"to": "branch"}, SourceRef(kind="archive", location="/x.tar.gz", sha256="0" * 64), "no history"),
        ({"to": "branch"}, SourceRef(kind="folder", location="/x"), "no history"),
        ({"to": "pull_request", "remote": "/srv/x.git"}, GIT, "what kind of forge"),
        ({"to": "pull_request", "remote": "/srv/x.git", "forge": "gitea"}, GIT, "no address of an API"),
        ({"to": "pull_request", "remote": "https://git.example/x", "forge": "gitea"}, GIT, "no OWNER/NAME"),
        ({"to": "pull_request", "base": "a..b"}, GIT, "no name of a branch"),
        ({"to": "branch", "author": "nobody"}, GIT, "no author"),
        ({"to": "branch", "branch": "{what}"}, GIT, "nothing that a branch can be named by"),
    ],
)
def test_a_target_that_cannot_work_is_refused_at_submission(
    stated: dict[str, Any], source: SourceRef, said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        complete_publish(Publish.model_validate(stated), source, batch="b", job="j", where="batch.yaml:7: publish")


class TestTheFileOfCredentials:
    def _file(self, folder: Path, text: str, mode: int = 0o600) -> Path:
        path = folder / "credentials.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    def test_gives_each_host_its_own(self, tmp_path: Path) -> None:
        read = Credentials.read(
            self._file(tmp_path, '["github.com"]\ntoken = "abc"\n["git.example:2222"]\nssh_key = "/run/key"\n')
        )
        github = read.of("api.github.com")
        assert github is not None
        assert (github.token, github.user) == ("abc", "x-access-token")
        assert read.of("GitHub.com") == github
        assert read.of("evil.example") is None
        assert read.of("git.example") is None
        assert "abc" not in repr(github)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('["x"]\ntoken = "hunter2', "not TOML"),
            ('["x"]\npassword = "hunter2"', "unknown field password"),
            ('["x"]\ntoken = 5', "token is no line"),
            ('["x"]\ntoken = "hunter2\\n"', "token is no line"),
            ('token = "hunter2"', "no table"),
        ],
    )
    def test_is_refused_without_telling_what_is_in_it(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(BadInput, match=said) as refused:
            Credentials.read(self._file(tmp_path, text))
        assert "hunter2" not in str(refused.value)

    def test_is_for_the_worker_alone(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="others may read"):
            Credentials.read(self._file(tmp_path, "", 0o644))

    def test_has_to_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="cannot be read"):
            Credentials.read(tmp_path / "nothing.toml")


def test_ssh_without_a_key_of_the_operators_is_refused(tmp_path: Path) -> None:
    git = Git(Credentials({"host.example": Credential(token="only-for-https")}))
    with pytest.raises(CredentialMissing, match="no ssh_key for host"):
        git.ref_at(parse_remote("git@host.example:a/b.git"), "refs/heads/x")


def test_words_of_a_remote_are_made_safe() -> None:
    said = safe_to_show("\x1b[31mno\n to https://u:p@x/y and t0ken dTp0MGtlbg== " + "x" * 400, ["t0ken", "u:t0ken"])
    assert said.startswith("[31mno to https://***@x/y and *** *** xxx")
    assert len(said) == 300


@pytest.mark.parametrize("world", ["branch-http"], indirect=True)
def test_no_process_has_a_credential_among_its_arguments(world: World) -> None:
    assert isinstance(world, HttpBranchWorld)
    world.faults.append("late")
    world.hurry()

    def pushed() -> None:
        with pytest.raises(OutcomeUnknown):
            effect_from(world.spec, OpenGate()).apply()

    push = threading.Thread(target=pushed)
    push.start()
    seen: set[str] = set()
    while push.is_alive():
        seen |= {_arguments(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
        push.join(0.02)
    pushing = [line for line in seen if "git-remote-http" in line or "git push" in line.replace("\0", " ")]
    assert any(world.spec["url"] in line for line in seen)
    assert pushing
    assert not [line for line in seen if world.spec["token"] in line]


def _arguments(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
