"""Real git repositories and an empty home for the mirrors of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.workspace.source import Mirrors
from tests.unit.workspace.trees import git


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def mirrors(home: Path) -> Mirrors:
    return Mirrors(home)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work tree with two commits on `main`, an annotated tag `v1` on the first, and a branch `side`."""
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.py").write_text("one\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("a.py")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "tag", "-a", "-m", "one", "v1")
    git(folder, "branch", "side")
    (folder / "a.py").write_text("two\n")
    git(folder, "commit", "-q", "-a", "-m", "second")
    return folder


def commit_of(folder: Path, name: str = "HEAD") -> str:
    return git(folder, "rev-parse", f"{name}^{{commit}}").decode().strip()


def no_object(_sha256: str) -> bytes:
    raise AssertionError("no pack is needed for this source")
