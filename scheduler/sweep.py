"""The recovery sweep: leases whose holder gave no sign of life are taken away, so that another worker may go on."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ledger.connect import Database
from ledger.dispatch import sweep_leases

log = structlog.get_logger(__name__)

_AT_ONCE = 500


class Sweeper:
    """Sweeps at most every `every_seconds`. `now` is a monotonic clock in seconds."""

    def __init__(self, db: Database, every_seconds: float, now: Callable[[], float]) -> None:
        self._db, self._every_seconds, self._now = db, every_seconds, now
        self._due = now()

    def sweep_if_due(self) -> int:
        """Takes expired leases when it is time to, and returns how many. LedgerUnavailable."""
        if self._now() < self._due:
            return 0
        total = 0
        while True:
            expired = sweep_leases(self._db, limit=_AT_ONCE).expired
            total += expired
            if expired < _AT_ONCE:
                break
        self._due = self._now() + self._every_seconds
        if total:
            log.warning("leases_expired", steps=total)
        return total
