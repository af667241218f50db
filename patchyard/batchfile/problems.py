"""What is wrong with a batch file, one line a mistake, all of them at once as far as that helps.

Somebody with ten mistakes in a file wants to see ten lines and not to submit ten times; somebody whose file has ten
thousand wants to see the first few.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ledger.errors import BadInput
from patchyard.printable import printable

MOST_SHOWN = 20
LONGEST_VALUE = 80


class BadBatch(BadInput):
    """The batch has mistakes; `problems` are all that were looked for, `message` has one line for each."""

    def __init__(self, problems: Iterable[BadInput], *, more: bool = False) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems[0].what, where=self.problems[0].where, remedy=self.problems[0].remedy)
        lines = [problem.message for problem in self.problems]
        if more:
            lines.append(f"only the first {len(lines)} mistakes are shown; mend them and try again")
        self.args = ("\n".join(lines),)


class Problems:
    """Collects mistakes up to MOST_SHOWN; `full` says that looking for more is of no use."""

    def __init__(self) -> None:
        self._found: list[BadInput] = []
        self._seen: set[str] = set()

    def add_once(self, what: str, problem: BadInput) -> None:
        """Note a mistake that is the same for all jobs, at the first one that has it."""
        if what not in self._seen:
            self._seen.add(what)
            self.add(problem)

    def add(self, problem: BadInput) -> None:
        """Note one mistake; one that reads the same as an earlier one is noted once."""
        found = problem.problems if isinstance(problem, BadBatch) else (problem,)
        for one in found:
            if one.message not in self._seen and len(self._found) <= MOST_SHOWN:
                self._seen.add(one.message)
                self._found.append(one)

    @property
    def full(self) -> bool:
        return len(self._found) > MOST_SHOWN

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_any(self) -> None:
        """Raise BadInput for one mistake, BadBatch for several."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise BadBatch(self._found[:MOST_SHOWN], more=self.full)


def quoted(value: object) -> str:
    """`value` as it may stand in a message: bounded, on one line, without anything that a terminal obeys."""
    return "'" + printable(value if isinstance(value, str) else str(value), LONGEST_VALUE) + "'"


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the known one that looks like it, or the list of all."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known names are {', '.join(sorted(names))}"
