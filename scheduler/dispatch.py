"""Sends offers of steps to the broker, which may be away at any time.

A step is recorded as offered before its message is sent. Offers that could not be sent wait here and go first when the
broker is back; those that a dying process takes with it are offered again by the ledger once they are stale. A message
sent twice does no harm, since only a claim starts anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import structlog

from ledger.errors import Temporary
from ledger.faults import crash_point
from ledger.records.step import Offer

log = structlog.get_logger(__name__)

Send = Callable[[Offer], None]
"""Sends one message; raises BrokerUnavailable."""


class BrokerUnavailable(Temporary):
    """The broker does not answer."""


class Outbox:
    """Offers to be sent, in order. It says once that the broker is away, and once that it is back."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[Offer] = deque()
        self.broker_away = False

    def add(self, offers: Iterable[Offer]) -> None:
        """Puts offers at the end."""
        self._waiting.extend(offers)

    def __len__(self) -> int:
        return len(self._waiting)

    def flush(self) -> int:
        """Sends what waits, up to the first failure, and returns how many were sent."""
        sent = 0
        while self._waiting:
            try:
                self._send(self._waiting[0])
            except BrokerUnavailable as error:
                self._note(away=True, why=error.message)
                return sent
            crash_point("dispatch.after_send")
            self._waiting.popleft()
            self._note(away=False)
            sent += 1
        return sent

    def _note(self, *, away: bool, why: str = "") -> None:
        if away and not self.broker_away:
            log.warning("broker_away", why=why, waiting=len(self._waiting))
        if not away and self.broker_away:
            log.info("broker_back", waiting=len(self._waiting))
        self.broker_away = away
