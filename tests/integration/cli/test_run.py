"""`run`: one command from a batch file to verified patches, on a stack that it starts and, if asked, stops."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from patchyard.cli import run
from patchyard.local.processes import stack_processes
from tests.integration.cli.conftest import git

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BATCH = """\
name: fixes
defaults:
  image: sandbox-python
  model: replay:replays/{id}.jsonl
  tests:
    command: [python3, -m, pytest, -q, -p, no:cacheprovider, --junitxml=/tmp/report.xml]
  acceptance:
    files: hidden
    fail_to_pass: [tests/test_hidden.py::test_sub]
jobs:
  - {id: fixes-it, repo: repo, issue: It adds where it should subtract.}
  - {id: does-not, repo: repo, issue: The same.}
"""
REPLAY = """\
{"tool": "read_file", "args": {"path": "calc.py"}}
{"tool": "apply_patch", "args": {"edits": [{"path": "calc.py", "version": "@calc.py", "old": "a + b", "new": "NEW"}]}}
{"final": "done"}
"""


@pytest.fixture
def ready(place, broker_url, engine_host, sandbox_layout, monkeypatch):
    """The working folder with a batch of two, a lock of the real image, and servers of the session's."""
    monkeypatch.setenv("PATCHYARD_BROKER_URL", broker_url)
    monkeypatch.setenv("PATCHYARD_DOCKER_HOST", engine_host)
    lock = (place / "lock.toml").read_text()
    lock = lock.replace("sha256:" + "a" * 64, sandbox_layout.manifest_digest)
    (place / "lock.toml").write_text(lock.replace("sha256:" + "b" * 64, sandbox_layout.config_digest))
    shelf = place / "home" / "images"
    shelf.mkdir(parents=True)
    name = f"sandbox-python-{sandbox_layout.manifest_digest.removeprefix('sha256:')[:16]}"
    (shelf / name).symlink_to(sandbox_layout.folder)
    (place / "hidden" / "tests").mkdir(parents=True)
    (place / "hidden" / "tests" / "test_hidden.py").write_text(
        "from calc import sub\n\n\ndef test_sub():\n    assert sub(3, 1) == 2\n"
    )
    (place / "replays" / "fixes-it.jsonl").write_text(REPLAY.replace("NEW", "a - b"))
    (place / "replays" / "does-not.jsonl").write_text(REPLAY.replace("NEW", "a * b"))
    (place / "batch.yaml").write_text(BATCH)
    return place


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "patchyard.cli", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_from_a_batch_file_to_verified_patches_and_nothing_left(ready):
    done = call("run", "batch.yaml", "--out", "out", "--down")
    assert done.returncode == 1, done.stderr  # one of the two is not fixed
    assert "fixes: 2/2 ended (1 completed, 1 failed)" in done.stdout
    rows = {row["job"]: row for row in map(json.loads, (ready / "out" / "results.jsonl").read_text().splitlines())}
    assert {job: row["reason"] for job, row in rows.items()} == {
        "fixes-it": "verified",
        "does-not": "acceptance_failed",
    }
    assert rows["fixes-it"]["acceptance"]["fail_to_pass"] == {"passed": 1, "failed": 0}
    assert [file.name for file in (ready / "out" / "patches").iterdir()] == ["fixes-it.patch"]
    git(ready / "repo", "apply", str(ready / "out" / "patches" / "fixes-it.patch"))
    assert "return a - b" in (ready / "repo" / "calc.py").read_text()
    assert stack_processes(ready / "home") == []


def test_a_stack_that_was_up_stays_up_and_the_same_batch_is_not_done_again(ready):
    try:
        assert call("up").returncode == 0
        first = call("run", "batch.yaml", "--down")
        assert first.returncode == 1, first.stderr
        assert stack_processes(ready / "home") != []
        started = time.monotonic()
        again = call("run", "batch.yaml")
        assert time.monotonic() - started < 20
        assert "was submitted before and is the same" in again.stdout
        shown = call("show", "fixes/fixes-it").stdout
        assert "apply_patch" in shown
        assert "verdict on the head: verified" in shown
    finally:
        assert call("down").returncode == 0
    assert stack_processes(ready / "home") == []


def test_mistakes_are_told_before_anything_is_started(ready):
    (ready / "batch.yaml").write_text(BATCH.replace("repo: repo", "repo: none"))
    refused = call("run", "batch.yaml")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 2
    assert all("batch.yaml:1" in line for line in refused.stderr.splitlines())
    assert stack_processes(ready / "home") == []


def test_an_image_that_is_nowhere_is_one_line(ready, capfd):
    (ready / "batch.yaml").write_text(BATCH.replace("image: sandbox-python", f"image: other@sha256:{'e' * 64}"))
    assert run(["run", "batch.yaml"]) == 2
    assert capfd.readouterr().err == (
        f"patchyard: the image other (sha256:{'e' * 12}…) is not in the engine and was not built here; "
        "load it into the engine\n"
    )
    assert stack_processes(ready / "home") == []


def test_an_image_that_only_the_engine_has_is_taken(ready, sandbox_image):
    for link in (ready / "home" / "images").iterdir():
        link.unlink()
    done = call("run", "batch.yaml", "--down")
    assert "fixes: 2/2 ended (1 completed, 1 failed)" in done.stdout, done.stderr
    assert stack_processes(ready / "home") == []
