"""A mirror is whole or not there: what is damaged, half made, or made by many at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ledger.records.source import SourceRef
from runners.workspace import mirrors as mirrors_module
from runners.workspace.errors import ObjectUnreadable
from runners.workspace.git_remote import Git, GitFailed
from runners.workspace.git_source import fetch_commit
from runners.workspace.mirrors import place_of
from runners.workspace.source import Mirrors, parse_source
from runners.workspace.store import Store
from tests.integration.sources.conftest import commit_of, no_object
from tests.unit.workspace.trees import read


def test_a_damaged_mirror_is_built_anew(home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    base = Mirrors(home).resolve(source).base
    place = home / "mirrors" / place_of(source)
    for path in (place / "objects/pack").iterdir():
        path.unlink()
    assert "a.py" in read(Mirrors(home).open(source, base.commit, no_object), base.tree)
    for path in place.rglob("*.pack"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:40] + b"garbage" * 20)
    assert "a.py" in read(Mirrors(home).open(source, base.commit, no_object), base.tree)
    (place / "HEAD").unlink()
    assert "a.py" in read(Mirrors(home).open(source, base.commit, no_object), base.tree)
    assert [p.name for p in home.joinpath("mirrors").iterdir() if p.name.startswith((".new", ".old"))] == []


def test_a_new_mirror_is_not_taken_for_the_damaged_one_that_somebody_still_has(home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    base = Mirrors(home).resolve(source).base
    place = home / "mirrors" / place_of(source)
    for path in place.rglob("*.pack"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:40] + b"garbage" * 20)
    kept = Store(place)
    with pytest.raises(ObjectUnreadable):
        read(kept, base.tree)
    assert "a.py" in read(Mirrors(home).open(source, base.commit, no_object), base.tree)
    del kept


def test_a_damaged_mirror_that_git_stumbles_over_is_built_anew(
    home: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = parse_source(str(work), work)
    base = Mirrors(home).resolve(source).base
    place = home / "mirrors" / place_of(source)
    for path in (place / "objects/pack").iterdir():
        path.unlink()
    fetched: list[Path] = []

    def fetch(git: Git, location: str, commit: str, git_dir: Path) -> None:
        fetched.append(git_dir)
        if git_dir == place:
            raise GitFailed("packfile does not match index")
        fetch_commit(git, location, commit, git_dir)

    monkeypatch.setattr("runners.workspace.mirrors.fetch_commit", fetch)
    assert "a.py" in read(Mirrors(home).open(source, base.commit, no_object), base.tree)
    assert len(fetched) == 2


def test_a_mirror_that_breaks_while_it_is_used_can_be_discarded(mirrors: Mirrors, home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    base = mirrors.resolve(source).base
    place = home / "mirrors" / place_of(source)
    for path in (place / "objects/pack").iterdir():
        path.unlink()
    with pytest.raises(ObjectUnreadable):
        read(Store(place), base.tree)
    mirrors.discard(source)
    assert not place.exists()
    assert "a.py" in read(mirrors.open(source, base.commit, no_object), base.tree)


def test_a_builder_that_is_killed_leaves_nothing_that_is_used(home: Path, work: Path, tmp_path: Path) -> None:
    """The fetch of another process is stopped half-way by a git that hangs; that process is then killed."""
    source = parse_source(str(work), work)
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "git").write_text('#!/bin/sh\ncase "$*" in *fetch*) sleep 30;; esac\nexec /usr/bin/git "$@"\n')
    (shim / "git").chmod(0o755)
    script = (
        "import sys; from pathlib import Path; from runners.workspace.source import Mirrors, parse_source\n"
        "Mirrors(Path(sys.argv[1])).resolve(parse_source(sys.argv[2], Path('/')))"
    )
    env = os.environ | {"PATH": f"{shim}:{os.environ['PATH']}"}
    builder = subprocess.Popen([sys.executable, "-c", script, str(home), str(work)], env=env)
    place = home / "mirrors" / place_of(source)
    deadline = time.monotonic() + 20
    while not list(home.glob("mirrors/.new-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    drafts = list(home.glob("mirrors/.new-*"))
    builder.kill()
    builder.wait()
    assert len(drafts) == 1
    assert not place.exists()
    base = Mirrors(home).resolve(source).base
    assert "a.py" in read(Mirrors(home).open(source, base.commit, no_object), base.tree)
    os.utime(drafts[0], (1, 1))
    Mirrors(home).discard(source)
    Mirrors(home).open(source, base.commit, no_object)
    assert not drafts[0].exists()


def test_many_builders_make_one_mirror(home: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    real = mirrors_module.fetch_commit

    def counting(git_: object, location: str, commit: str, git_dir: Path) -> None:
        fetched.append(commit)
        real(git_, location, commit, git_dir)  # type: ignore[arg-type]

    monkeypatch.setattr(mirrors_module, "fetch_commit", counting)
    source, commit = parse_source(str(work), work), commit_of(work)
    each = [Mirrors(home) for _ in range(6)]
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda m=m: found.append(m.open(source, commit, no_object).has(commit))) for m in each
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert fetched == [commit]


def test_resolving_the_same_base_ten_thousand_times_is_cheap(mirrors: Mirrors, work: Path) -> None:
    mirrors.resolve(parse_source(str(work), work))
    started = time.monotonic()
    for _ in range(10_000):
        mirrors.resolve(SourceRef(kind="git", location=str(work)))
    assert time.monotonic() - started < 30
