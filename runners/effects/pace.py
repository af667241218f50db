"""The pace of writes to each forge, which all workers of an installation keep together, through the ledger.

GitHub asks for a second between writes and allows 80 of them a minute and 500 an hour (its guide to the REST API's
limits); what a forge says in its answers (`retry-after`, `x-ratelimit-reset`) closes it for everybody until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ledger.connect import Database
from ledger.forges import TurnLimits, close_forge, closed_seconds
from runners.effects.remote import Remote

GITHUB = TurnLimits(gap_seconds=1.1, per_minute=80, per_hour=500)
OTHERS = TurnLimits(gap_seconds=1.1, per_minute=60)


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turns a write needs: the forge by its host, and how often it may be written to."""

    forge: str
    limits: TurnLimits = OTHERS


def turns_of(remote: Remote) -> Turns | None:
    """The turns that pushes to a remote need; None for a file."""
    if remote.scheme == "file":
        return None
    return Turns(remote.host, GITHUB if remote.host == "github.com" else OTHERS)


class Gate(Protocol):
    """Knows when a forge wants to be left alone."""

    def closed_seconds(self, forge: str) -> float:
        """For how long no request may go to `forge`; 0.0 when it is open."""

    def close(self, forge: str, seconds: float, why: str) -> None:
        """Nobody writes to `forge` for so long."""


class LedgerGate:
    """The gate of all workers."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def closed_seconds(self, forge: str) -> float:
        """As `Gate`."""
        return closed_seconds(self._db, forge)

    def close(self, forge: str, seconds: float, why: str) -> None:
        """As `Gate`."""
        close_forge(self._db, forge, seconds=seconds, why=why)
