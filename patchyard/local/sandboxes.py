"""Removes the sandboxes that a stopped stack's workers left on an engine that stays.

A worker that is asked to end takes its sandboxes with it. One that was killed does not, and the reaper of its successor
waits for the lease to run out; a stack that goes has no successor, so this looks once more before it goes.
"""

from __future__ import annotations

from ledger.connect import Database
from ledger.errors import Temporary
from ledger.sandboxes import live_sandboxes, mark_sandbox
from patchyard.backends import connect, name_in_ledger
from runners.registry import LedgerRegistry


def clear_sandboxes(database_url: str, engine: str, *, ledger_is_ours: bool) -> tuple[str, ...]:
    """Destroy what the ledger's register still has on the engine at this address; returns what is left, in words.

    The workers must have ended. In a ledger that others work on too, a sandbox whose lease is live may be theirs, and
    is only named. Servers that do not answer are named as well.
    """
    try:
        with Database(database_url, name="patchyard down", pool_max=1) as db:
            return tuple(_cleared(db, engine, ledger_is_ours))
    except Temporary as error:
        return (f"sandboxes could not be looked for: {error.message}",)


def _cleared(db: Database, engine: str, ledger_is_ours: bool) -> list[str]:
    rows = live_sandboxes(db)
    if not rows:
        return []
    left = []
    backend = connect(engine, LedgerRegistry(db, name_in_ledger(engine)))
    try:
        for row in rows:
            for found in backend.find(name=row.name):
                if row.lease_live and not ledger_is_ours:
                    left.append(f"sandbox {row.name} of step {row.step_id}, whose lease is live")
                    continue
                death = backend.destroy(found)
                if death.gone:
                    mark_sandbox(db, row.name, "removed", {"reaped": [death.plain()]})
                else:
                    left.append(f"sandbox {row.name} of step {row.step_id}, killed and still there")
    finally:
        backend.close()
    return left
