"""Sandboxes written down in the ledger, under the lease of the step that they serve.

Registration is refused without the lease, and so is going on after creation: a worker that was paused in between finds
its lease gone, and what it created is removed before anything runs in it.
"""

from __future__ import annotations

import secrets
from typing import Any

from ledger.connect import Database
from ledger.errors import LeaseLost
from ledger.sandboxes import live_sandboxes, mark_sandbox, register_sandbox
from runners.sandbox.backend import SandboxState
from runners.sandbox.spec import SandboxSpec


class LedgerRegistry:
    """The registry for one backend; `engine_host` names its engine among those of all workers."""

    def __init__(self, db: Database, engine_host: str) -> None:
        self._db = db
        self.engine_host = engine_host

    def register(self, spec: SandboxSpec) -> str:
        """See `Registry.register`. Raises LeaseLost, and IsolationUnverified for one that no probe allows."""
        name = f"patchyard-{spec.step_id}-{spec.fence}-{secrets.token_hex(4)}"
        register_sandbox(
            self._db,
            step_id=spec.step_id,
            fence=spec.fence,
            name=name,
            engine_host=self.engine_host,
            image=spec.image,
            purpose=spec.purpose,
            probe_id=spec.probe_id,
        )
        return name

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        """See `Registry.mark`. Raises LeaseLost for one that was created and whose lease is gone."""
        if state == "created" and not self._is_leased(name):
            raise LeaseLost
        mark_sandbox(self._db, name, state, evidence)

    def _is_leased(self, name: str) -> bool:
        step_id = int(name.split("-")[1])
        return any(row.name == name and row.lease_live for row in live_sandboxes(self._db, step_id=step_id))
