"""`watch`: what it shows on a terminal and elsewhere, how it ends, and what it outlives."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from ledger.connect import Database
from ledger.reads import find_job
from patchyard.cli.watch import Pace
from tests.integration.cli.played import VERIFY, decide, play, spec, submit, verify

COMMAND = [sys.executable, "-m", "patchyard.cli", "watch", "b"]


def wait_for(what: Callable[[], bool], seconds: float = 30) -> None:
    """Returns when `what` is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def watching(place, ledger):
    """A `watch` of batch b, which has one job, in a process of its own, with its output in files."""
    submit(ledger, "b", spec("j"))
    with (place / "out").open("w") as out, (place / "err").open("w") as err:
        process = subprocess.Popen(COMMAND, stdout=out, stderr=err, cwd=place)
        try:
            wait_for(lambda: "0/1 ended" in (place / "out").read_text())
            yield process
        finally:
            process.kill()
            process.wait()


def test_plain_lines_where_there_is_no_terminal(ledger, patchyard):
    submit(ledger, "b", spec("good"), spec("bad"))
    play(ledger, "good")
    decide(ledger, "bad", {"kind": "final", "text": ""}, VERIFY)
    verify(ledger, "bad", ok=False)
    shown = patchyard("watch", "b")
    assert shown.status == 1
    (line,) = shown.out.splitlines()
    assert line.startswith("b: 2/2 ended (1 completed, 1 failed), $0.0494, tokens 4000 in, 200 out, sandboxes 2.3 s")
    submit(ledger, "g", spec("only"))
    play(ledger, "only")
    assert patchyard("watch", "g").status == 0


def test_json_lines_for_machines(ledger, patchyard):
    submit(ledger, "b", spec("only"))
    play(ledger, "only")
    (line,) = patchyard("watch", "b", "--json").out.splitlines()
    row = json.loads(line)
    assert (row["total"], row["finished"], row["states"]["completed"], row["running_agents"]) == (1, 1, 1, 0)
    assert row["spent"]["steps"] == 3


def test_bars_on_a_terminal(ledger, place):
    submit(ledger, "b", spec("j"), spec("waits"))
    play(ledger, "j")
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(COMMAND, stdout=slave, stderr=slave, stdin=slave, cwd=place, env=env)
    os.close(slave)
    shown = b""
    while "queued" not in shown.decode("utf-8", "ignore"):
        shown += os.read(master, 65536)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # the other end is closed when the process is gone
        while data := os.read(master, 65536):
            shown += data
    assert process.wait(20) == 130
    os.close(master)
    text = shown.decode()
    assert "━" in text
    assert "1/2" in text


def test_ctrl_c_leaves_the_jobs_and_says_how_to_come_back(watching, ledger, place):
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130
    (said,) = (place / "err").read_text().splitlines()
    assert "the jobs of b go on" in said
    assert "`patchyard watch b`" in said
    assert "`patchyard cancel b`" in said
    assert find_job(ledger, "b/j").state == "queued"


def test_a_database_that_goes_away_for_a_while_is_waited_for(watching, ledger, place, postgres_url, ledger_url):
    name = urlsplit(ledger_url).path.lstrip("/")
    ledger.close()
    with psycopg.connect(postgres_url, autocommit=True) as server:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        server.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        wait_for(lambda: "trying again" in (place / "err").read_text())
        server.execute(allow.format(sql.Identifier(name), sql.SQL("true")))
    with Database(ledger_url) as again:
        play(again, "j")
        assert watching.wait(60) == 0
    assert [line.split("; ")[-1] for line in (place / "err").read_text().splitlines()] == [
        "trying again",
        "patchyard: the database answers again",
    ]
    assert "1/1 ended (1 completed)" in (place / "out").read_text()


def test_pace_is_of_the_last_minute():
    pace = Pace()
    pace.note(0, 0)
    assert pace.eta_seconds(5) is None
    for second in range(1, 601):
        pace.note(second, 2 * second if second <= 300 else 600 + (second - 300))
    assert pace.jobs_a_minute() == pytest.approx(60, rel=0.05)
    assert pace.eta_seconds(30) == pytest.approx(30, rel=0.05)
