"""Keeps the leases of one process alive, and tells the work under a lease when it has to stop.

One thread renews all leases together every third of their duration, so a lease survives two failed renewals. Work is
told to stop, once, through its `stop` event and for one reason: the lease was `lost` (another worker may have the step:
nothing more may be done and the result is void), the job was cancelled (`cancel`), or this process has to end
(`shutdown`). A lease that could not be renewed because the ledger is away counts as lost when its time is up by this
process's own clock, which started before the claim: the ledger never sees it end earlier than we do. A second thread
watches that, since asking a ledger that is away takes long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import structlog

from ledger.connect import Database
from ledger.errors import LedgerUnavailable
from ledger.records.step import Claim
from ledger.steps import renew_leases

log = structlog.get_logger(__name__)

_WATCH_SECONDS = 0.5
_CLOSE_SECONDS = 1.0

Why = Literal["lost", "cancel", "shutdown"]


@dataclass
class HeldLease:
    """A lease that is being kept. `stop` is set when the work under it has to end, `why` then says for what reason."""

    claim: Claim
    expires_at: float
    stop: threading.Event = field(default_factory=threading.Event)
    why: Why | None = None

    def end(self, why: Why) -> None:
        """Tell the work to stop; only a lost lease overrules an earlier reason."""
        if self.why is None or why == "lost":
            self.why = why
        self.stop.set()


class LeaseKeeper:
    """Renews what is held until `close`. Thread-safe."""

    def __init__(self, db: Database, lease_seconds: float) -> None:
        self._db, self._lease_seconds = db, lease_seconds
        self._held: dict[tuple[int, int], HeldLease] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._shutting_down = False
        self._ledger_away = False
        self._threads = [
            threading.Thread(target=loop, name=name, daemon=True)
            for loop, name in ((self._renew_forever, "lease-keeper"), (self._watch_forever, "lease-watch"))
        ]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def holding(self, claim: Claim, claimed_at: float) -> Iterator[HeldLease]:
        """Keeps the claim's lease inside the block. `claimed_at` is time.monotonic() from before the claim."""
        held = HeldLease(claim, expires_at=claimed_at + self._lease_seconds)
        key = claim.step_id, claim.fence
        with self._lock:
            self._held[key] = held
            if self._shutting_down:
                held.end("shutdown")
        try:
            yield held
        finally:
            with self._lock:
                self._held.pop(key)

    def __len__(self) -> int:
        return len(self._held)

    def stop_all(self) -> None:
        """Tell all work, and all that may still start, to stop because this process ends."""
        with self._lock:
            self._shutting_down = True
            for held in self._held.values():
                held.end("shutdown")

    def close(self) -> None:
        """Renew no more. A renewal that a silent ledger holds up is not waited for."""
        self._closed.set()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    def _renew_forever(self) -> None:
        every_seconds = self._lease_seconds / 3
        pause = every_seconds
        while not self._closed.wait(pause):
            started = time.monotonic()
            answered = self._renew()
            pause = max(every_seconds - (time.monotonic() - started), 0) if answered else min(1.0, every_seconds / 3)

    def _watch_forever(self) -> None:
        while not self._closed.wait(min(_WATCH_SECONDS, self._lease_seconds / 10)):
            self._drop_expired()

    def _renew(self) -> bool:
        with self._lock:
            held = dict(self._held)
        asked_at = time.monotonic()
        try:
            renewed = renew_leases(self._db, list(held), self._lease_seconds)
        except LedgerUnavailable as error:
            if held and not self._ledger_away:
                log.warning("leases_not_renewed", held=len(held), why=error.message)
            self._ledger_away = True
            return False
        if self._ledger_away:
            log.info("leases_renewed_again", held=len(held))
        self._ledger_away = False
        for (step_id, fence), lease in held.items():
            match renewed[step_id]:
                case "lost":
                    self._lose(lease, (step_id, fence))
                case "cancel":
                    lease.expires_at = asked_at + self._lease_seconds
                    lease.end("cancel")
                case "kept":
                    lease.expires_at = asked_at + self._lease_seconds
        return True

    def _drop_expired(self) -> None:
        now = time.monotonic()
        with self._lock:
            held = dict(self._held)
        for key, lease in held.items():
            if now >= lease.expires_at:
                self._lose(lease, key)

    def _lose(self, lease: HeldLease, key: tuple[int, int]) -> None:
        """End a lease, unless its step was completed in the meantime: then nobody holds it any more."""
        with self._lock:
            if self._held.get(key) is lease:
                lease.end("lost")
