"""One yard a test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.connect import Database
from tests.integration.worker.yard import Yard


def make_repository(folder: Path, files: dict[str, bytes]) -> tuple[Path, str, str]:
    """A git repository with these files: its path, its commit and its tree."""
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder), **names}

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, check=True)
        return done.stdout.decode().strip()

    git("init", "-q", "-b", "main")
    for name, data in files.items():
        (folder / name).write_bytes(data)
        git("add", name)
    git("commit", "-q", "-m", "first")
    return folder, git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")


@pytest.fixture(scope="session")
def small_repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A git repository with one file."""
    return make_repository(tmp_path_factory.mktemp("repository"), {"a.txt": b"one\ntwo\n"})


@pytest.fixture
def yard(
    database: Database, broker_url: str, tmp_path: Path, small_repository: tuple[Path, str, str]
) -> Iterator[Yard]:
    """A fresh ledger and an empty broker; every process is gone after the test."""
    opened = Yard(database, broker_url, tmp_path, small_repository)
    opened.broker.flushdb()
    try:
        yield opened
    finally:
        opened.close()
