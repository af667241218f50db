"""Sandboxes written down in the ledger, under the lease of the step that they serve.

Registration is refused without the lease, and so is going on after creation: a worker that was paused in between finds
its lease gone, and what it created is removed before anything runs in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from ledger.connect import Database
from ledger.errors import LeaseLost
from ledger.events import append_events
from ledger.records.step import Event
from ledger.sandboxes import bind_sandbox, live_sandboxes, mark_sandbox, register_sandbox
from runners.sandbox.backend import NotArmed, SandboxState
from runners.sandbox.spec import NetworkRequest, SandboxPlace, SandboxSpec

ARMED_LEASE_SECONDS = 10.0
"""How long one that waits is kept when its worker is not heard of."""


class LedgerRegistry:
    """The registry for one backend; `engine_host` names its engine among those of all workers."""

    def __init__(self, db: Database, engine_host: str) -> None:
        self._db = db
        self.engine_host = engine_host

    def register(self, place: SandboxPlace) -> str:
        """See `Registry.register`. Raises LeaseLost, and IsolationUnverified for one that no probe allows."""
        name = f"patchyard-{place.step_id}-{place.fence}-{secrets.token_hex(4)}"
        register_sandbox(
            self._db,
            step_id=place.step_id,
            fence=place.fence,
            name=name,
            engine_host=self.engine_host,
            image=place.image,
            purpose=place.purpose,
            probe_id=place.probe_id,
            armed_seconds=None if place.armed_seconds is None else ARMED_LEASE_SECONDS,
        )
        return name

    def bind(self, name: str, spec: SandboxSpec) -> None:
        """See `Registry.bind`. Raises LeaseLost, NotArmed, and IsolationUnverified when its probe allows it no more."""
        if not bind_sandbox(self._db, name, step_id=spec.step_id, fence=spec.fence):
            raise NotArmed("its time was over, or it was taken away")

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        """See `Registry.mark`. Raises LeaseLost for one that was created and whose lease is gone."""
        if state == "created" and not self._is_leased(name):
            raise LeaseLost
        mark_sandbox(self._db, name, state, evidence)

    def note_requests(self, place: SandboxPlace, requests: Sequence[NetworkRequest], left_out: int) -> None:
        """See `Registry.note_requests`: each is an event of the job. Raises LeaseLost."""
        told = [Event(kind="network_request", body=request.plain()) for request in requests]
        if left_out:
            told.append(Event(kind="network_requests_left_out", body={"refused": left_out}))
        append_events(self._db, place, told)

    def _is_leased(self, name: str) -> bool:
        step_id = int(name.split("-")[1])
        return any(row.name == name and row.lease_live for row in live_sandboxes(self._db, step_id=step_id))
