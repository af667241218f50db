"""Whether this worker may begin anything, said aloud when that changes.

A worker whose disk is nearly full begins nothing: claims are refused before they are made, so no attempt is used up and
other workers can have the steps. What it is asked for meanwhile waits a moment, so that it does not empty the queue of
hints that others could take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from ledger.errors import NoRoom

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 2.0


class RoomWatch:
    """`check` raises NoRoom; `on_full` is called whenever it did. Safe to use from many threads."""

    def __init__(self, check: Callable[[], None], on_full: Callable[[], None] = lambda: None) -> None:
        self._check, self._on_full = check, on_full
        self._lock = threading.Lock()
        self._full = False

    def require(self) -> None:
        """Raises NoRoom, and says so the first time; says when there is room again."""
        try:
            self._check()
        except NoRoom as full:
            if self._changed(full=True):
                log.warning("disk_full", code=full.code, why=full.what, remedy=full.remedy)
            self._on_full()
            raise
        if self._changed(full=False):
            log.info("disk_has_room")

    def _changed(self, *, full: bool) -> bool:
        with self._lock:
            changed, self._full = full != self._full, full
            return changed
