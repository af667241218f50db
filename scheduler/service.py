"""The scheduler's loop: one active in a cluster, which admits jobs, offers ready steps and takes expired leases.

Whoever has the lead (a lock that lives with a database session) works, the others wait for it and take over within
`follow_seconds`. All that it knows is in the ledger, so it may be killed between any two lines. The broker and the wake
signal are hints: without either, work goes on by polling once the broker is back. When the database is lost, so is the
lead: nothing is sent until it is taken anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ledger.connect import Database
from ledger.dispatch import Lead, admit_jobs, ready_offers, try_lead
from ledger.errors import LedgerUnavailable
from scheduler.dispatch import BrokerUnavailable, Outbox, Send
from scheduler.sweep import Sweeper

log = structlog.get_logger(__name__)

Depth = Callable[[], int]
"""How many messages wait in the broker; raises BrokerUnavailable."""
Wait = Callable[[float], None]
"""Returns after so many seconds, or sooner when there may be work or the service is to stop."""


@dataclass(frozen=True)
class Pace:
    """How much and how often. `capacity` is the number of jobs in progress in the whole cluster.

    A step offered long ago and claimed by nobody is offered again, since its message may be lost: after `lost_seconds`
    when no message waits in the broker, else after `stale_seconds`, so that steps which only wait for their turn do not
    fill the queues with copies of their messages. A leader that says nothing to the ledger for `lead_seconds` has lost
    the lead. Rounds follow each other after `busy_seconds` as long as there is work, else after `idle_seconds` or a
    wake signal.
    """

    capacity: int
    lost_seconds: float = 3.0
    stale_seconds: float = 60.0
    sweep_seconds: float = 1.0
    busy_seconds: float = 0.02
    idle_seconds: float = 0.5
    follow_seconds: float = 1.0
    lead_seconds: float = 30.0
    offers_at_once: int = 200


class Scheduler:
    """Serves until `stop` is set. `send` sends one offer to the broker, `wait` sleeps until there may be work."""

    def __init__(
        self, db: Database, *, send: Send, depth: Depth, wait: Wait, stop: threading.Event, pace: Pace
    ) -> None:
        self._db, self._depth, self._wait, self._stop, self._pace = db, depth, wait, stop, pace
        self._outbox = Outbox(send)
        self._ledger_away = False

    def serve(self) -> None:
        """Wait for the lead, use it until it is lost, again and again."""
        waits = False
        while not self._stop.is_set():
            lead = self._take_lead()
            if lead is None:
                if not waits:
                    log.info("waits_for_the_lead")
                waits = True
                self._stop.wait(self._pace.follow_seconds)
                continue
            waits = False
            try:
                self._use(lead)
            finally:
                lead.release()

    def _take_lead(self) -> Lead | None:
        try:
            lead = try_lead(self._db, silence_seconds=self._pace.lead_seconds)
        except LedgerUnavailable as error:
            self._note_ledger(away=True, why=error.message)
            return None
        self._note_ledger(away=False)
        return lead

    def _use(self, lead: Lead) -> None:
        log.info("lead_taken", capacity=self._pace.capacity)
        sweeper = Sweeper(self._db, self._pace.sweep_seconds, time.monotonic)
        while not self._stop.is_set():
            try:
                if not lead.still():
                    log.warning("lead_lost")
                    return
                busy = self._round(sweeper)
            except LedgerUnavailable as error:
                self._note_ledger(away=True, why=error.message)
                return
            self._wait(self._pace.busy_seconds if busy else self._pace.idle_seconds)
        log.info("lead_given_away")

    def _round(self, sweeper: Sweeper) -> bool:
        """One look at everything there is to do; whether there was anything."""
        expired = sweeper.sweep_if_due()
        sent = self._outbox.flush()
        if self._outbox:
            return False  # the broker is away: offering more would only age in memory
        self._outbox.add(admit_jobs(self._db, capacity=self._pace.capacity))
        self._outbox.add(ready_offers(self._db, limit=self._pace.offers_at_once, stale_seconds=self._stale_seconds()))
        sent += self._outbox.flush()
        return bool(sent or expired)

    def _stale_seconds(self) -> float:
        try:
            return self._pace.stale_seconds if self._depth() else self._pace.lost_seconds
        except BrokerUnavailable:
            return self._pace.stale_seconds

    def _note_ledger(self, *, away: bool, why: str = "") -> None:
        if away and not self._ledger_away:
            log.warning("ledger_away", why=why)
        if not away and self._ledger_away:
            log.info("ledger_back")
        self._ledger_away = away
