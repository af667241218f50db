"""The register of sandboxes: written before one is created, and closed only by the proof of its death."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ledger.connect import Database
from ledger.records.base import Record
from ledger.storable import storable

SandboxState = Literal["registered", "created", "running", "exited", "removed"]
SandboxPurpose = Literal["job", "probe"]


class SandboxRow(Record):
    """A sandbox that has not been proved dead; `lease_live` says whether its step's lease still is the one it had."""

    name: str
    job_id: int
    step_id: int
    fence: int
    engine_host: str
    image: str
    state: SandboxState
    evidence: dict[str, Any]
    registered_at: datetime
    lease_live: bool


def register_sandbox(
    db: Database,
    *,
    step_id: int,
    fence: int,
    name: str,
    engine_host: str,
    image: str,
    purpose: SandboxPurpose = "job",
    probe_id: int | None = None,
) -> None:
    """Writes down a sandbox that is about to be created. After an error do not create it.

    A job's sandbox needs the probe that allows it, a probe's own does without. LeaseLost if the lease is gone,
    IsolationUnverified if there is no such probe, or if it failed, ran out, or was followed by one that failed.
    """
    db.run(
        "register_sandbox",
        step=step_id,
        fence=fence,
        name=name,
        host=engine_host,
        image=image,
        purpose=purpose,
        probe=probe_id,
    )


def mark_sandbox(db: Database, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
    """Records how far a sandbox has got; `removed` is final and means that its death was seen."""
    db.run("mark_sandbox", name=name, state=state, evidence=storable(evidence))


def live_sandboxes(db: Database, *, step_id: int | None = None, job_id: int | None = None) -> list[SandboxRow]:
    """Sandboxes not proved dead, of a step, of a job, or all."""
    return [SandboxRow.model_validate(row) for row in db.run("live_sandboxes", step=step_id, job=job_id)]
