"""The two commands as a person and a process manager meet them: help, one-line errors, logs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.yard import Yard, until


def _run(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PATCHYARD_HOME": str(home), "COLUMNS": "200"} | environment
    command = [sys.executable, "-m", "patchyard.cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=home, timeout=60)


@pytest.mark.parametrize("command", ["worker", "scheduler"])
def test_help_shows_an_example(command: str, tmp_path: Path) -> None:
    done = _run(command, "--help", home=tmp_path)
    assert done.returncode == 0
    assert f"Example: patchyard {command}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("worker", "--queues", "decide,cook"), 2, "--queues: no queue 'cook'; choose of decide, sandbox, publish"),
        (("worker", "--queues", " , "), 2, "--queues: no queue is named"),
        (("worker",), 2, "--queues"),
        (("worker", "--queues", "decide"), 3, "patchyard up"),
        (("scheduler",), 3, "patchyard up"),
        (("scheduler", "--capacity", "0"), 2, "--capacity"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    arguments: tuple[str, ...], status: int, says: str, tmp_path: Path
) -> None:
    done = _run(*arguments, home=tmp_path)
    assert done.returncode == status
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_importing_the_application_connects_to_nothing() -> None:
    code = (
        "import socket; connect = socket.socket.connect\n"
        "def refuse(*a): raise SystemExit('connected')\n"
        "socket.socket.connect = refuse\n"
        "import patchyard.celery_app as c; app = c.make_app('redis://127.0.0.1:1/0'); print(sorted(c.QUEUES))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['decide', 'publish', 'sandbox']", done.stderr


def test_every_line_about_a_step_says_whose_it_is(yard: Yard) -> None:
    worker = yard.worker("decide")
    yard.scheduler()
    [ref] = yard.submit([{"plan": "one"}])
    yard.wait_for_end(ref)

    def done() -> list[dict[str, Any]]:
        return [line for line in worker.lines() if line["event"] == "step_done"]

    until(lambda: len(done()) >= 2)  # the last line comes after the job's end
    lines = done()
    assert len(lines) == 2
    for line, step in zip(lines, yard.steps(ref), strict=True):
        assert (line["batch"], line["job"]) == tuple(ref.split("/"))
        assert (line["agent"], line["step"], line["fence"]) == (step.agent_id, step.id, step.fence)
        assert line["level"] == "info"
        assert line["timestamp"]


def test_on_a_terminal_logs_are_for_people(yard: Yard) -> None:
    ours, theirs = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "PATCHYARD_HOME": str(yard.home),
        "PATCHYARD_DATABASE_URL": yard.db.url,
        "PATCHYARD_BROKER_URL": yard.broker_url,
    }
    command = [sys.executable, "-m", "patchyard.cli", "scheduler"]
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"lead_taken" not in shown:
        shown += os.read(ours, 4096)
    process.terminate()
    assert process.wait(10) == 0
    os.close(ours)
    assert b'"event"' not in shown
