"""What a run of the monkey came to, as a table for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from tests.chaos.monkey import Monkey
from tests.chaos.outcomes import outcome_of
from tests.chaos.world import Tally

_ABOUT = """\
# Chaos

Made by `make chaos MINUTES=… SEED=… OUT=…`: jobs of twelve shapes run on PostgreSQL, Valkey, an engine, a git remote
and a forge of the run's own, with two schedulers and two workers a queue, while everything is killed, stopped, cut off
and lied to. Afterwards each job is compared with one of its shape to which nothing was done (state, reason, tree,
patch, number of turns, calls and verifications), books and chains are audited, and effects are counted in the places
that they go to.

A commit that is cut was not sent, or not answered. A death at a crash point is counted besides the kill that made room
for the process that was to die there. A fault of the remote or of the forge is one that met a write.

"""


@dataclass(frozen=True)
class Report:
    """A run that is over."""

    seed: int
    minutes: float
    monkey: Monkey
    tallies: list[Tally]
    findings: list[str]

    def page(self) -> str:
        """What is kept of the run: Markdown that explains itself."""
        return _ABOUT + self.text()

    def text(self) -> str:
        """Markdown."""
        ends: dict[str, int] = {}
        for ref in self.monkey.refs:
            reason = outcome_of(self.monkey.yard.db, ref).reason or "not ended"
            ends[reason] = ends.get(reason, 0) + 1
        injected = sorted(self.monkey.injected.items(), key=lambda item: -item[1])
        lines = [
            f"{self.minutes:g} minutes, seed {self.seed}, {datetime.now(UTC):%Y-%m-%d}, on {_machine()}.",
            "",
            f"{sum(self.monkey.injected.values())} faults were injected while {len(self.monkey.refs)} jobs ran. "
            f"{len(self.monkey.retried)} of them used up the attempts of a step and were started anew once."
            f" Findings: {len(self.findings)}.",
            "",
            *_table(("fault", "times"), injected),
            "",
            *_table(
                ("effect", "expected", "seen", "duplicated", "lost"),
                [(t.kind, t.expected, t.seen, len(t.duplicated), len(t.lost)) for t in self.tallies],
            ),
            "",
            *_table(("jobs ended with", "times"), sorted(ends.items())),
        ]
        if self.monkey.retried:
            lines += ["", "Started anew:", "", *(f"- {ref}: {why}" for ref, why in self.monkey.retried.items())]
        if self.findings:
            lines += ["", "Findings:", "", *(f"- {finding}" for finding in self.findings)]
        return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> list[str]:
    lines = [head, tuple("---" if place == 0 else "---:" for place in range(len(head))), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def _machine() -> str:
    memory = round(psutil.virtual_memory().total / 2**30)
    return f"{os.cpu_count()} cores, {memory} GiB, Linux {platform.release()}, Python {platform.python_version()}"
