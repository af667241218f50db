"""Where the effects of jobs are looked for, each place by itself and not by what the workers say.

A place that effects go to (the ledger's patches, a git remote, a forge) is a World; the run asks each of them how often
the effect of a job is in it. Exactly once is the promise; more is a duplicate, less is a loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ledger.connect import Database
from ledger.events import read_events
from ledger.objects import get_object
from ledger.reads import find_job


class World(Protocol):
    """A place that effects go to."""

    @property
    def kind(self) -> str:
        """The effect's name in tables."""

    def count(self, ref: str) -> int:
        """How often the effect of the job is in the world."""


@dataclass(frozen=True)
class Patches:
    """The ledger's own patches: the bytes are there, under the name that the job and each receipt give."""

    db: Database
    kind: str = "patch"

    def count(self, ref: str) -> int:
        """See World."""
        job = find_job(self.db, ref)
        receipts = [event.body["sha256"] for event in read_events(self.db, job.id) if event.kind == "published"]
        if job.patch_sha256 is None:
            return len(receipts)
        get_object(self.db, job.patch_sha256)  # raises when the bytes are not there or are others
        return sum(receipt == job.patch_sha256 for receipt in receipts)


@dataclass
class Tally:
    """Effects of one kind over a run."""

    kind: str
    expected: int = 0
    seen: int = 0
    duplicated: int = 0
    lost: int = 0


def tally(world: World, refs: Iterable[str], expected: dict[str, int]) -> Tally:
    """Counts the effects of these jobs; `expected` says how often each has to be there."""
    total = Tally(world.kind)
    for ref in refs:
        wanted, seen = expected[ref], world.count(ref)
        total.expected += wanted
        total.seen += seen
        total.duplicated += max(seen - wanted, 0)
        total.lost += max(wanted - seen, 0)
    return total
