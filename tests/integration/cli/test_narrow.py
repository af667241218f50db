"""What the tables show on a terminal of 80 columns: no word that matters is cut, and what is left out is said."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from ledger.records.budget import Budget
from ledger.records.step import Completion
from ledger.steps import complete_step
from tests.integration.cli.played import VERIFY, claim, decide, play, spec, submit, verify

COLUMNS = 80
LONG = "html2text-empty-strong-mark"


def on_a_terminal(*arguments: str) -> str:
    """What the command line writes to a terminal, stderr included."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "patchyard.cli", *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        env=kept | {"TERM": "dumb"},
    )
    os.close(its)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    process.wait(30)
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture
def wide(ledger):
    """A batch whose table is wider than a terminal."""
    submit(ledger, "wide", spec(LONG), spec(LONG + "-not"), spec("out-of-budget", budget=Budget(cost_usd=0.5)))
    play(ledger, LONG)
    decide(ledger, LONG + "-not", {"kind": "final", "text": "done"}, VERIFY)
    verify(ledger, LONG + "-not", ok=False, why="t::x failed")
    complete_step(ledger, claim(ledger, "out-of-budget"), Completion(result={}, end="budget:cost_microusd"))
    return ledger


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (("list",), ("1 completed, 1 failed, 1 out of", "3/3")),
        (("status", "wide"), (LONG + "-not", "acceptance_failed", "budget:cost_usd $0.00/$0.50", "out of budget")),
        (("results", "wide"), (LONG + "-not", "acceptance_failed", "budget:cost_usd $0.00/$0.50", "3/0/0")),
        (("budget", "wide"), ("sandbox_seconds", "delegated", "free")),
        (("show", f"wide/{LONG}"), ("run_tests {} → 71 passed, 2 failed, 1", "sandbox_seconds", "delegated")),
        (("trace", f"wide/{LONG}"), ("completed, verified", "spent sandbox_seconds 900 ms", "job_submitted")),
    ],
)
def test_nothing_that_matters_is_cut(wide, command, whole):
    shown = on_a_terminal(*command)
    for words in whole:
        assert words in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= COLUMNS


def test_what_there_is_no_room_for_is_said_and_a_pipe_gets_all(wide, patchyard):
    shown = on_a_terminal("results", "wide")
    assert "80 columns are too few for files, steps, cost, time; --json has all" in shown
    piped = patchyard("results", "wide")
    assert all(name in piped.out.splitlines()[0].split() for name in ("job", "files", "steps", "cost", "time"))
    assert "too few" not in piped.out + piped.err


def test_a_name_as_long_as_may_be_is_folded_and_not_cut(ledger):
    submit(ledger, "x" * 100, spec("y" * 100))
    assert on_a_terminal("list").replace(" ", "").count("x") == 100
    assert on_a_terminal("status", "x" * 100).count("y") == 100
