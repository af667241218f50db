"""The register of sandboxes: written before one is created, and closed only by the proof of its death."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from ledger.connect import Database
from ledger.records.base import Record
from ledger.storable import storable

SandboxState = Literal["registered", "created", "armed", "running", "exited", "removed"]
"""`armed` waits for a command; `exited` is proved dead, and what is left of it is being removed."""
SandboxPurpose = Literal["job", "probe"]


class SandboxRow(Record):
    """A sandbox that is not known to be gone. `waits` says that it has or will have no command yet. `lease_live` says
    whether its step's lease still is the one it had; of one that waits, whether its time is not over."""

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
    waits: bool


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
    armed_seconds: float | None = None,
) -> None:
    """Writes down a sandbox that is about to be created. After an error do not create it.

    With `armed_seconds` it is to wait for a command and outlives its step, for so long if nobody renews that.

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
        armed=armed_seconds,
    )


def bind_sandbox(db: Database, name: str, *, step_id: int, fence: int) -> bool:
    """Makes the armed sandbox `name` that of this step; whether it could be had. If so, and only then, send it the
    command. LeaseLost if the lease is gone, IsolationUnverified if its probe allows it no more."""
    return bool(db.run("bind_sandbox", step=step_id, fence=fence, name=name)[0]["bound"])


def renew_armed(db: Database, names: Sequence[str], lease_seconds: float) -> set[str]:
    """Keeps the named waiting for so long again; those that are given up come back: their job has ended or is to, they
    were not renewed in time, or somebody took them away."""
    return {row["name"] for row in db.run("renew_armed", names=list(names), duration=lease_seconds)}


def mark_sandbox(db: Database, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
    """Records how far a sandbox has got; `removed` is final and means that its death was seen."""
    db.run("mark_sandbox", name=name, state=state, evidence=storable(evidence))


def live_sandboxes(db: Database, *, step_id: int | None = None, job_id: int | None = None) -> list[SandboxRow]:
    """Sandboxes not proved dead, of a step, of a job, or all."""
    return [SandboxRow.model_validate(row) for row in db.run("live_sandboxes", step=step_id, job=job_id)]
