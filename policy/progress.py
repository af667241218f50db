"""When an agent goes round in circles: fingerprints of what it did, what it saw, and the tree it was on.

Each turn leaves one fingerprint, and the ledger keeps the last of an agent. An agent that repeats a circle of at
most LONGEST_CIRCLE turns, with the same observations on the same tree, learns nothing from going round once more. The
least number of turns that counts is above the attempts that a step may make, so that what the world gets over by being
tried again is never taken for a circle; a command that is asked again and answers otherwise is none either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.records.base import canonical_json, sha256_hex

LEAST_TURNS = 6
"""Above `ledger.steps.MAX_ATTEMPTS`."""
LONGEST_CIRCLE = 4
ROUNDS = 3
"""All that a circle takes is within `ledger.steps.MARKS_KEPT` fingerprints."""

_DIGITS = 16
_DENIED = "!"
_NOT_SEEN = frozenset({"run_ms", "call_id"})
"""Parts of an observation that differ although nothing else does."""
_PASSING = re.compile(r"\b\d+\.\d+ ?s(?:ec(?:onds?)?)?\b|0x[0-9a-f]{6,}")
"""Durations and addresses in a program's output: pytest's `in 0.12s`, `<Thing at 0x7f…>`."""


@dataclass(frozen=True)
class Circle:
    """So many turns, `rounds` times in a row; `denied` if all that was done in them was refused by a rule."""

    turns: int
    rounds: int
    denied: bool = False

    def told(self) -> str:
        """In words."""
        of = "the last turn was" if self.turns == 1 else f"the last {self.turns} turns were"
        came = "and refused by a rule each time" if self.denied else "with the same result on the same tree"
        return f"{of} made {self.rounds} times in a row, {came}"


def fingerprint(
    asked: Mapping[str, Any], observed: Mapping[str, Any] | None, tree: str, *, denied: bool = False
) -> str:
    """One turn: what was `asked` for (plain JSON), what was `observed` of it, the tree after it, and whether a rule
    refused it."""
    return (_DENIED if denied else "") + sha256_hex(canonical_json([asked, _seen(observed), tree]))[:_DIGITS]


def find_circle(recent: Sequence[str]) -> Circle | None:
    """The circle that an agent is in, by the fingerprints of its last turns, oldest first; None if it is in none."""
    for turns in range(1, LONGEST_CIRCLE + 1):
        rounds = max(ROUNDS, -(-LEAST_TURNS // turns))
        last = recent[-turns * rounds :]
        if len(last) == turns * rounds and all(one == last[at % turns] for at, one in enumerate(last)):
            return Circle(turns, rounds, denied=all(one.startswith(_DENIED) for one in last))
    return None


def _seen(value: Any) -> Any:
    """An observation without what passes."""
    if isinstance(value, Mapping):
        return {key: _seen(item) for key, item in value.items() if key not in _NOT_SEEN}
    if isinstance(value, list | tuple):
        return [_seen(item) for item in value]
    return _PASSING.sub("", value) if isinstance(value, str) else value
