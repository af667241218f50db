"""Which crash points which kinds of steps pass, and how often, as counted in a run to which nothing is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ledger.faults import CRASH_POINTS
from tests.chaos.jobs import FIX, QUICK, Shape
from tests.chaos.process import PASSINGS
from tests.chaos.yard import Yard

Which = Literal["first", "second", "last"]

BATCH: tuple[Shape, ...] = (FIX, QUICK, FIX)
"""Run one job after the other by one worker a queue, so that the order of passings is the same every time."""

MEMBER_OF = {"decide": "decide", "act": "sandbox", "verify": "sandbox", "publish": "publish", "dispatch": "scheduler"}
_EVERY_STEP = ("claim.after", "complete.before_commit", "complete.after_commit")
ARMED_POINTS = ("sandbox.after_arm", "sandbox.after_bind")
"""Passed when there is time for it, so not by number."""
NOTHING_ARMED = {"PATCHYARD_ARMED": "0"}
"""For a process whose passings are numbered."""
NETWORK_POINTS = ("sandbox.after_listen",)
"""Passed by jobs with a network, which these have not: see tests/sandbox/test_network.py."""
_SANDBOX = tuple(
    point for point in CRASH_POINTS if point.startswith("sandbox.") and point not in (*ARMED_POINTS, *NETWORK_POINTS)
)
PASSED_BY: Mapping[str, tuple[str, ...]] = {
    "decide": (*_EVERY_STEP, "decide.after_model"),
    "act": (*_EVERY_STEP, "act.before_intent", "act.after_intent", "act.after_effect", *_SANDBOX),
    "verify": (*_EVERY_STEP, *_SANDBOX),
    "publish": (*_EVERY_STEP, "publish.after_intent", "publish.after_effect"),
    "dispatch": ("dispatch.after_send",),
}


@dataclass(frozen=True)
class Passings:
    """For each kind of step and point, the numbers of its passings among all that the process makes of that point."""

    numbers: Mapping[tuple[str, str], Sequence[int]]

    def nth(self, kind: str, point: str, which: Which) -> int:
        """The number that PATCHYARD_CRASH wants."""
        found = self.numbers[kind, point]
        return {"first": found[0], "second": found[1], "last": found[-1]}[which]


def count_passings(yard: Yard) -> Passings:
    """Runs the batch once, with every passing written down."""
    files = {name: yard.folder / f"passings-{name}" for name in set(MEMBER_OF.values())}
    yard.crew.renew({name: {PASSINGS: str(file), **NOTHING_ARMED} for name, file in files.items()})
    yard.ends_well(yard.submit(*BATCH, max_parallel=1))
    numbers: dict[tuple[str, str], list[int]] = {}
    for name, file in files.items():
        for kind, point, number in _numbered(file, "dispatch" if name == "scheduler" else ""):
            numbers.setdefault((kind, point), []).append(number)
    return Passings(numbers)


def _numbered(file: Path, default: str) -> list[tuple[str, str, int]]:
    """(kind, point, number) of each passing. A claim is of the kind of what is done under it."""
    passings = [(*line.split(" "), "")[:2] for line in file.read_text().splitlines()]
    seen: dict[str, int] = {}
    found = []
    for place, (point, kind) in enumerate(passings):
        seen[point] = seen.get(point, 0) + 1
        of = kind or next((later for _, later in passings[place:] if later), default)
        found.append((of, point, seen[point]))
    return found
