"""Git repositories of every kind become mirrors, and nothing of them is run."""

from __future__ import annotations

import os
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ledger.errors import BadInput, Temporary
from ledger.records.source import SourceRef
from runners.workspace.errors import CommitMissing, RepositoryMissing, RepoUnavailable
from runners.workspace.mirrors import SourceLimits
from runners.workspace.source import Mirrors, parse_source
from runners.workspace.tarball import TreeLimits
from tests.integration.sources.conftest import commit_of, no_object
from tests.integration.sources.servers import answering, files_of, git_backend, reply, served
from tests.unit.workspace.trees import git, read


@pytest.mark.parametrize("base", [None, "HEAD", "main", "refs/heads/main"])
def test_a_name_is_resolved_to_a_commit_at_submission(mirrors: Mirrors, work: Path, base: str | None) -> None:
    resolution = mirrors.resolve(parse_source("work", work.parent), base)
    assert resolution.source == SourceRef(kind="git", location=str(work))
    assert resolution.base.commit == commit_of(work)
    assert resolution.base.tree == git(work, "rev-parse", "HEAD^{tree}").decode().strip()
    assert resolution.base.remarks == ()
    assert resolution.pack is None


def test_tags_branches_short_ids_and_steps_back_are_understood(mirrors: Mirrors, work: Path) -> None:
    source, first = parse_source(str(work), work), commit_of(work, "v1")
    for base in ("v1", "side", first, first[:7], first.upper(), "HEAD~1", "main^"):
        assert mirrors.resolve(source, base).base.commit == first
    tag_id = git(work, "rev-parse", "v1").decode().strip()
    assert mirrors.resolve(source, tag_id).base.commit == first


def test_the_workspace_holds_the_files_and_no_history(mirrors: Mirrors, home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    base = mirrors.resolve(source).base
    store = Mirrors(home).open(source, base.commit, no_object)
    files = read(store, base.tree)
    assert {path: change.data for path, change in files.items()} == {
        "a.py": b"two\n",
        "run.sh": b"#!/bin/sh\n",
        "link": b"a.py",
    }
    assert not store.has(commit_of(work, "v1"))


def test_bare_repositories_linked_work_trees_and_file_urls(mirrors: Mirrors, work: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(work), "bare repo.git")
    git(work, "worktree", "add", "-q", str(tmp_path / "linked"), "side")
    assert (tmp_path / "linked/.git").is_file()
    assert mirrors.resolve(parse_source("bare repo.git", tmp_path)).base.commit == commit_of(work)
    assert mirrors.resolve(parse_source("linked", tmp_path)).base.commit == commit_of(work, "side")
    url = (tmp_path / "bare repo.git").as_uri()
    assert mirrors.resolve(parse_source(url, tmp_path)).base.commit == commit_of(work)


def test_a_worker_without_the_mirror_makes_it_and_a_new_commit_is_fetched(work: Path, tmp_path: Path) -> None:
    source = parse_source(str(work), work)
    first = Mirrors(tmp_path / "submit").resolve(source).base
    worker = Mirrors(tmp_path / "worker")
    assert worker.open(source, first.commit, no_object).has(first.tree)
    (work / "new").write_text("x")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "third")
    second = Mirrors(tmp_path / "submit").resolve(source).base
    store = worker.open(source, second.commit, no_object)
    assert store.has(first.tree)
    assert "new" in read(store, second.tree)


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("nope", "no such commit: nope; give a commit that it has, or push it there"),
        ("1" * 40, f"no such commit: {'1' * 40}; give a commit that it has, or push it there"),
        ("v1^{tree}", "is no name of a commit; give a commit, a branch, a tag or HEAD"),
        ("--upload-pack=x", "is no name of a commit; give a commit, a branch, a tag or HEAD"),
        ("HEAD:a.py", "is no name of a commit; give a commit, a branch, a tag or HEAD"),
        ("main..side", "is no name of a commit; give a commit, a branch, a tag or HEAD"),
    ],
)
def test_a_commit_that_is_not_there_is_one_clear_line(mirrors: Mirrors, work: Path, base: str, told: str) -> None:
    with pytest.raises(CommitMissing) as error:
        mirrors.resolve(parse_source(str(work), work), base)
    assert error.value.message.split(": ", 1)[1] == told


def test_an_empty_repository_has_no_head(mirrors: Mirrors, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")
    with pytest.raises(CommitMissing, match="no such commit: HEAD; make a first commit"):
        mirrors.resolve(parse_source("empty", tmp_path))


def test_an_ambiguous_short_id_is_told(mirrors: Mirrors, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    git(tmp_path, "init", "-q", "many")
    tree = git(folder, "mktree", data=b"").decode().strip()
    commits = [git(folder, "commit-tree", "-m", str(n), tree).decode().strip() for n in range(60)]
    prefixes = [c[:1] for c in commits]
    assert len(set(prefixes)) < len(commits)
    seen: dict[str, str] = {}
    clash = ""
    for number in range(60, 2_000):
        if clash:
            break
        commit = git(folder, "commit-tree", "-m", str(number), tree).decode().strip()
        if seen.setdefault(commit[:4], commit) != commit:
            clash = commit[:4]
    assert clash
    with pytest.raises(CommitMissing, match="is ambiguous"):
        mirrors.resolve(parse_source("many", tmp_path), clash)


def test_a_repository_of_another_object_format_is_told(mirrors: Mirrors, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "sha256")
    with pytest.raises(RepositoryMissing, match="its object format is not SHA-1"):
        mirrors.resolve(parse_source("sha256", tmp_path))


# -- over the network --------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, work: Path) -> Path:
    git(tmp_path, "clone", "-q", "--bare", str(work), "served/repo.git")
    git(tmp_path / "served/repo.git", "update-server-info")
    return tmp_path / "served/repo.git"


@pytest.mark.parametrize("base", [None, "main", "v1", "side", "FULL", "SHORT", "HEAD~1", "TAG"])
def test_a_repository_behind_smart_http(mirrors: Mirrors, bare: Path, work: Path, base: str | None) -> None:
    first, tag = commit_of(work, "v1"), git(work, "rev-parse", "v1").decode().strip()
    wanted = commit_of(work) if base in (None, "main") else first
    name = {"FULL": first, "SHORT": first[:8], "TAG": tag}.get(base or "", base)
    with served(git_backend(bare.parent)) as url:
        source = parse_source(f"{url}/repo.git", bare)
        resolution = mirrors.resolve(source, name)
    assert resolution.base.commit == wanted
    assert mirrors.open(source, wanted, no_object).has(resolution.base.tree)


@pytest.mark.parametrize("base", [None, "v1", "FULL"])
def test_a_repository_behind_dumb_http(mirrors: Mirrors, bare: Path, work: Path, base: str | None) -> None:
    wanted = commit_of(work, base if base == "v1" else "HEAD")
    with served(files_of(bare.parent)) as url:
        resolution = mirrors.resolve(parse_source(f"{url}/repo.git", bare), wanted if base == "FULL" else base)
    assert resolution.base.commit == wanted


def test_missing_commits_of_a_server_are_told(mirrors: Mirrors, bare: Path) -> None:
    with served(git_backend(bare.parent)) as url:
        source = parse_source(f"{url}/repo.git", bare)
        for base in ("1" * 40, "abcdef1", "nope"):
            with pytest.raises(CommitMissing, match=f"no such commit: {base}"):
                mirrors.resolve(source, base)


def test_no_password_is_asked_and_none_is_shown(mirrors: Mirrors, bare: Path, home: Path) -> None:
    with served(git_backend(bare.parent, password="Basic dTpzM2NyM3Q=")) as url:
        host = url.removeprefix("http://")
        right = parse_source(f"http://u:s3cr3t@{host}/repo.git", bare)
        assert mirrors.resolve(right).base.commit == commit_of(bare)
        with pytest.raises(RepositoryMissing) as error:
            mirrors.resolve(parse_source(f"http://u:wr0ng@{host}/repo.git", bare))
        with pytest.raises(RepositoryMissing, match="cannot be read"):
            mirrors.resolve(parse_source(f"{url}/repo.git", bare))
    with pytest.raises(RepoUnavailable) as later:
        Mirrors(home / "other").open(right, commit_of(bare), no_object)
    for message in (error.value.message, later.value.message):
        assert "wr0ng" not in message
        assert "s3cr3t" not in message
        assert "\n" not in message


def test_a_password_is_taken_from_the_users_netrc(
    mirrors: Mirrors, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login u password s3cr3t\n")
    with served(git_backend(bare.parent, password="Basic dTpzM2NyM3Q=")) as url:
        source = parse_source(f"{url}/repo.git", bare)
        assert mirrors.resolve(source).base.commit == commit_of(bare)
    assert "s3cr3t" not in source.location


def test_a_server_that_does_not_answer_is_bad_input_for_a_user_and_temporary_for_a_worker(mirrors: Mirrors) -> None:
    source = SourceRef(kind="git", location="http://127.0.0.1:9/repo.git")
    with pytest.raises(BadInput, match=r"cannot be read: .*; check the address"):
        mirrors.resolve(source)
    with pytest.raises(Temporary):
        mirrors.open(source, "1" * 40, no_object)


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    stop = threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> None:
        stop.wait(20)
        reply(request, 500)

    with served(answering(hang)) as url:
        mirrors = Mirrors(tmp_path / "home", limits=SourceLimits(git_seconds=1.0))
        started = time.monotonic()
        with pytest.raises(RepoUnavailable, match="took too long"):
            mirrors.open(SourceRef(kind="git", location=f"{url}/x.git"), "1" * 40, no_object)
        assert time.monotonic() - started < 60
        stop.set()


@pytest.mark.parametrize("location", ["git://127.0.0.1/x.git", "ext::sh -c 'touch {mark}'", "fd::3"])
def test_other_protocols_are_never_spoken(mirrors: Mirrors, tmp_path: Path, location: str) -> None:
    mark = tmp_path / "mark"
    source = SourceRef(kind="git", location=location.format(mark=mark))
    with pytest.raises(RepositoryMissing):
        mirrors.resolve(source)
    with pytest.raises(RepoUnavailable):
        mirrors.open(source, "1" * 40, no_object)
    assert not mark.exists()


# -- nothing of a repository runs, nobody's configuration counts -------------------------------------------------------


def test_nothing_that_a_repository_or_user_configures_is_run(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch '{mark}'\nexit 1\n")
    evil.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.pager", "uploadpack.packObjectsHook", "core.gitProxy",
                "filter.lfs.smudge", "credential.helper", "core.alternateRefsCommand", "core.askPass"):  # fmt: skip
        git(work, "config", key, str(evil))
    git(work, "config", "remote.origin.url", f"ext::{evil}")
    for hook in ("post-checkout", "reference-transaction", "post-update", "pre-receive", "update"):
        (work / ".git/hooks").mkdir(exist_ok=True)
        (work / ".git/hooks" / hook).symlink_to(evil)
    user = tmp_path / "user"
    user.mkdir()
    (user / ".gitconfig").write_text(
        f"[core]\n\tfsmonitor = {evil}\n\thooksPath = {work}/.git/hooks\n[uploadpack]\n\tpackObjectsHook = {evil}\n"
    )
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(evil))
    monkeypatch.setenv("GIT_PROXY_COMMAND", str(evil))
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    mirrors = Mirrors(tmp_path / "home")
    assert len(mirrors.resolve(parse_source(str(work), work)).base.commit) == 40
    with pytest.raises(RepositoryMissing):
        mirrors.resolve(SourceRef(kind="git", location="git@127.0.0.1:x.git"))
    assert not mark.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to another user")
def test_a_repository_of_another_user_is_read(mirrors: Mirrors, work: Path) -> None:
    for path in [work, *work.rglob("*")]:
        os.chown(path, 1234, 1234, follow_symlinks=False)
    assert mirrors.resolve(parse_source(str(work), work)).base.commit


def test_a_tree_with_git_folders_in_disguise_is_refused(mirrors: Mirrors, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "evil.git")
    repo = tmp_path / "evil.git"
    blob = git(repo, "hash-object", "-w", "--stdin", data=b"[core]\n").decode().strip()
    inner = git(repo, "hash-object", "-t", "tree", "-w", "--stdin", "--literally",
                data=b"100644 config\0" + bytes.fromhex(blob)).decode().strip()  # fmt: skip
    outer = git(repo, "hash-object", "-t", "tree", "-w", "--stdin", "--literally",
                data=b"40000 .GIT\0" + bytes.fromhex(inner)).decode().strip()  # fmt: skip
    commit = git(repo, "commit-tree", "-m", "x", outer).decode().strip()
    with pytest.raises(RepositoryMissing, match=r"[Gg]it"):
        mirrors.resolve(parse_source("evil.git", tmp_path), commit)


def test_a_tree_that_is_too_large_is_refused(tmp_path: Path, work: Path) -> None:
    mirrors = Mirrors(tmp_path / "home", limits=SourceLimits(tree=TreeLimits(max_files=2)))
    with pytest.raises(BadInput, match="cannot be worked on: too many files"):
        mirrors.resolve(parse_source(str(work), work))


def test_lfs_pointers_and_submodules_are_one_line_each(mirrors: Mirrors, work: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12345\n"
    for name in ("a.bin", "b.bin", "c.bin", "d.bin"):
        (work / name).write_text(pointer)
    git(work, "add", ".")
    git(work, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},libs/sub")
    git(work, "commit", "-q", "-m", "more")
    base = mirrors.resolve(parse_source(str(work), work)).base
    assert base.remarks == (
        "4 Git LFS pointers (a.bin, b.bin, c.bin, …): jobs see the pointers, not the files behind them",
        "1 submodule (libs/sub): jobs see empty folders there",
    )
