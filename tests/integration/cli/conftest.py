"""A working folder with a real repository, a real ledger behind the settings, and the command line called in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.connect import Database
from patchyard.cli import run

LOCK = f"""\
[images.sandbox-python]
digest = "sha256:{"a" * 64}"
config = "sha256:{"b" * 64}"
distribution = "debian-12"
architecture = "amd64"
built = 2026-01-01
packages = 100
"""
BATCH = """\
name: fixes
defaults:
  image: sandbox-python
  model: replay:replays/{id}.jsonl
  tests: {command: [python3, -m, pytest, --junitxml=/tmp/report.xml]}
jobs:
  - id: one
    repo: repo
    issue: It adds where it should subtract.
"""
HEAD = BATCH.split("jobs:")[0]
ONE = "jobs:\n  - id: one\n    repo: repo\n    issue: x\n"
TABLES = ("batches", "jobs", "agents", "accounts", "steps", "objects", "events", "chains")


def rows(db) -> dict[str, int]:
    """How many rows each table has."""
    with db.transaction() as connection:
        counted = {t: connection.execute(f"SELECT count(*) AS n FROM ledger.{t}").fetchone() for t in TABLES}  # noqa: S608
    return {table: found["n"] for table, found in counted.items()}


@dataclass
class Outcome:
    """What one call of the command line left."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def git(folder: Path, *args: str) -> str:
    """Runs git in `folder` without anybody's configuration."""
    identity = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", **identity}
    done = subprocess.run(["git", "-C", str(folder), *args], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def place(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: `repo` is a repository, `batch.yaml` a good batch, settings point at a fresh ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATCHYARD_DATABASE_URL", ledger_url)
    monkeypatch.setenv("PATCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATCHYARD_IMAGES_LOCK", str(tmp_path / "lock.toml"))
    (tmp_path / "lock.toml").write_text(LOCK)
    repo = tmp_path / "repo"
    (repo / "tests").mkdir(parents=True)
    (repo / "calc.py").write_text("def sub(a, b):\n    return a + b\n")
    (repo / "tests" / "test_calc.py").write_text("def test_nothing():\n    pass\n")
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "start")
    (tmp_path / "replays").mkdir()
    (tmp_path / "replays" / "one.jsonl").write_text('{"final": "done"}\n')
    (tmp_path / "batch.yaml").write_text(BATCH)
    return tmp_path


@pytest.fixture
def patchyard(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """Calls the command line in this process."""

    def call(*arguments: str) -> Outcome:
        capfdbinary.readouterr()
        status = run(list(arguments))
        out, err = capfdbinary.readouterr()
        return Outcome(status, out.decode("utf-8", "surrogateescape"), err.decode())

    return call


@pytest.fixture
def ledger(database: Database, place: Path) -> Database:
    """The same ledger that the command line uses."""
    return database
