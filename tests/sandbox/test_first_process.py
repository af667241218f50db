"""A part of a sandbox's first process, run alone: what takes a moment that no test could hit from outside."""

from __future__ import annotations

import os
import subprocess

from runners.sandbox.wrapper import NUMBERS, WRAPPER


def _part(begin: str, end: str) -> str:
    start = WRAPPER.index(begin)
    return WRAPPER[start : WRAPPER.index(end, start)]


def test_a_time_that_is_over_between_two_lines_never_ends_it() -> None:
    """Its timer may go off at any instruction of `reap`, also before and after the part that catches it: with times of
    microseconds it goes off at all of them."""
    numbers = NUMBERS[os.uname().machine]
    told = ", ".join(str(numbers[name]) for name in ("clock_gettime", "setitimer"))
    parts = [
        f"my ($clock_gettime, $setitimer, $CLOCK_MONOTONIC, $ITIMER_REAL) = ({told}, 1, 0); my ($deadline, $stage);",
        _part("sub clock", "syscall($prctl"),
        _part("# $end is the end", "# A reader").replace("clock() + $patience", "clock() + 1000"),
        _part("sub reap", "sub kill_the_rest").replace("timer($seconds, 0.05)", "timer($seconds, 0.00002)"),
        "for (1 .. 5000) { reap(-1, 0.00001) } print 'survived'",
    ]
    script = "".join(parts).replace("$_ < 0.001 ? 0.001", "$_ < 0.00001 ? 0.00001")
    done = subprocess.run(["perl", "-e", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived", "")
