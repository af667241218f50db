"""The whole stack by its commands: every service ready, any of them killed, changed settings, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.connect import Database
from ledger.sandboxes import live_sandboxes
from patchyard.local.home import Home
from patchyard.local.processes import stack_processes
from patchyard.local.services import service_names
from runners.sandbox.docker import DockerBackend
from tests.fixtures.engine import MemoryRegistry
from tests.integration.stack.conftest import eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@dataclass(frozen=True)
class Commands:
    """`patchyard` with a home of its own, on the session's engine."""

    folder: Path
    environment: dict[str, str]

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "patchyard.cli", *arguments],
            cwd=self.folder,
            env=self.environment | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def up(self, **env: str) -> None:
        done = self.run("up", **env)
        assert done.returncode == 0, done.stderr

    def ps(self) -> dict[str, dict[str, Any]]:
        return {row["service"]: row for row in json.loads(self.run("ps", "--json").stdout)}

    def home(self) -> Home:
        return Home((self.folder / ".patchyard").resolve())


@pytest.fixture
def commands(engine_host: str) -> Iterator[Commands]:
    folder = Path(tempfile.mkdtemp(prefix="patchyard-test-"))
    folder.chmod(0o711)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    made = Commands(folder, kept | {"DOCKER_HOST": engine_host})
    yield made
    done = made.run("down")
    assert (done.returncode, done.stdout) == (0, "nothing is left running\n")
    assert stack_processes(made.home().path) == []
    shutil.rmtree(folder)


def test_up_returns_when_every_service_is_ready_and_down_when_all_are_gone(commands: Commands) -> None:
    commands.up()
    shown = commands.ps()
    assert set(shown) == {"supervisor", "standby", "postgres", "valkey", *service_names()}
    assert {row["state"] for row in shown.values()} == {"running"}
    assert {row["restarts"] for row in shown.values()} == {0}
    for name in service_names():
        assert commands.home().log(name).stat().st_size > 0
    assert commands.run("list").returncode == 0
    before = {name: row["pid"] for name, row in shown.items()}
    commands.up()
    assert {name: row["pid"] for name, row in commands.ps().items()} == before
    down = commands.run("down")
    assert (down.returncode, down.stdout) == (0, "nothing is left running\n")
    assert not list(commands.home().run.folder.glob("*.json"))
    done = commands.run("ps")
    assert (done.returncode, done.stdout) == (0, "")
    assert "patchyard up" in done.stderr


def test_each_service_can_be_killed_and_is_back(commands: Commands) -> None:
    commands.up()
    for name in service_names():
        pid = commands.ps()[name]["pid"]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: commands.ps()[name]["pid"] not in (None, pid))  # noqa: B023
        row = commands.ps()[name]
        assert row["last_exit"] == "SIGKILL"
        assert row["restarts"] == 1
    commands.up()
    assert {row["state"] for row in commands.ps().values()} == {"running"}


def test_up_restarts_the_services_whose_settings_changed_and_no_others(commands: Commands) -> None:
    commands.up()
    before = {name: row["pid"] for name, row in commands.ps().items()}
    commands.up(PATCHYARD_PUBLISH_SLOTS="5")
    after = {name: row["pid"] for name, row in commands.ps().items()}
    assert {name for name in after if after[name] != before[name]} == {"worker-publish", "scheduler"}


def test_a_service_that_cannot_start_is_named_with_its_last_words(commands: Commands) -> None:
    done = commands.run("up", PATCHYARD_CRASH_POINTS="1", PATCHYARD_CRASH="no.such.point")
    assert done.returncode == 3
    line = done.stderr.splitlines()[-1]
    assert "ends again and again" in line
    assert "no such crash point" in line
    assert "logs/" in line
    assert stack_processes(commands.home().path) == []


@pytest.fixture
def sandboxes(engine_host: str) -> Iterator[Callable[[], list[str]]]:
    """Names of the sandboxes that workers have on the session's engine now."""
    backend = DockerBackend(engine_host, MemoryRegistry("none"))
    yield lambda: [found.name for found in backend.find()]
    backend.close()


def submit_a_long_run(commands: Commands, image: str) -> None:
    """One job whose tests take five minutes."""
    repository = commands.folder / "repo"
    repository.mkdir()
    (repository / "a.py").write_text("x = 1\n")
    (commands.folder / "replay.jsonl").write_text('{"tool": "run_tests", "args": {}}\n{"final": "done"}\n')
    batch = {
        "name": "long",
        "jobs": [
            {
                "id": "sleeper",
                "repo": "repo",
                "issue": "none",
                "image": image,
                "model": "replay:replay.jsonl",
                "tests": {"command": ["sleep", "300"], "timeout_seconds": 600},
                "budget": {"wall_seconds": 3600, "sandbox_seconds": 3600},
            }
        ],
    }
    (commands.folder / "batch.json").write_text(json.dumps(batch))
    done = commands.run("submit", "batch.json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("alone", [False, True])
def test_down_leaves_no_sandbox_behind(
    commands: Commands, sandbox_image: str, sandboxes: Callable[[], list[str]], alone: bool
) -> None:
    """Also when the worker was killed and nobody was left to start its successor."""
    commands.up()
    submit_a_long_run(commands, sandbox_image)
    eventually(sandboxes, 40)
    if alone:
        pids = {name: row["pid"] for name, row in commands.ps().items()}
        os.kill(pids["supervisor"], signal.SIGSTOP)
        for name in ("standby", "worker-sandbox", "supervisor"):
            os.kill(pids[name], signal.SIGKILL)
    down = commands.run("down")
    assert (down.returncode, down.stdout) == (0, "nothing is left running\n"), down.stderr
    assert sandboxes() == []
    database_url = json.loads(commands.run("up", "--no-wait", "--json").stdout)["database_url"]
    with Database(database_url) as db:
        assert live_sandboxes(db) == []
