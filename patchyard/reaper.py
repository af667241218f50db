"""Removes, now and then, the sandboxes that dead workers left, whether or not anybody tries their steps again.

What to look for is the ledger's register, in which every sandbox is written down before it is created; so nothing that
another ledger started on the same engine is ever touched. A sandbox whose lease is live is left alone.
"""

from __future__ import annotations

import threading

import structlog

from ledger.connect import Database
from ledger.errors import Temporary
from ledger.sandboxes import SandboxRow, live_sandboxes, mark_sandbox
from runners.sandbox.backend import Backend

log = structlog.get_logger(__name__)


def reap(db: Database, backend: Backend, engine_host: str) -> int:
    """Destroy what is left on this engine and write down what was seen; returns how many are proved gone.

    Raises LedgerUnavailable, EngineUnavailable.
    """
    rows = [row for row in live_sandboxes(db) if row.engine_host == engine_host and not row.lease_live]
    return sum(_prove_gone(db, backend, row) for row in rows)


def _prove_gone(db: Database, backend: Backend, row: SandboxRow) -> bool:
    found = backend.find(name=row.name)
    seen = [backend.destroy(sandbox) for sandbox in found]
    if not all(death.gone for death in seen):
        log.warning("sandbox_still_there", sandbox=row.name, step=row.step_id)
        return False
    evidence = {"reaped": [death.plain() for death in seen] or "not found on its engine"}
    mark_sandbox(db, row.name, "removed", evidence)
    log.info("sandbox_reaped", sandbox=row.name, step=row.step_id, fence=row.fence, found=len(found))
    return True


class Reaper:
    """Reaps at once and then every `every_seconds`, in a thread of its own, until closed."""

    def __init__(self, db: Database, backend: Backend, engine_host: str, every_seconds: float = 30.0) -> None:
        self._db, self._backend, self._engine_host = db, backend, engine_host
        self._every_seconds = every_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._reap_forever, name="reaper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Reap no more."""
        self._closed.set()
        self._thread.join()

    def _reap_forever(self) -> None:
        away = False
        while True:
            try:
                reap(self._db, self._backend, self._engine_host)
                away = False
            except Temporary as error:
                if not away:
                    log.warning("reaper_waits", why=error.message)
                away = True
            if self._closed.wait(self._every_seconds):
                return
