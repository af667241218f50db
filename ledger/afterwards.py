"""What a person does about a job that has ended: retries it, verifies it again, resolves an effect, audits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ledger.batches import first_step
from ledger.connect import Database, amounts_literal
from ledger.errors import BadInput
from ledger.events import broken_links
from ledger.records.base import Record
from ledger.records.budget import Amounts
from ledger.records.job import JobSpec, JobState, Reason
from ledger.records.tool import Effect
from ledger.storable import storable


@dataclass(frozen=True)
class Finding:
    """Something in a job's books that must never be."""

    job_id: int
    finding: str
    detail: dict[str, Any]


def ended_jobs(
    db: Database, batch_id: int, *, states: Sequence[JobState] | None = None, reasons: Sequence[Reason] | None = None
) -> list[int]:
    """Ids of the ended jobs of a batch, of the given states and reasons (None: any)."""
    rows = db.run(
        "ended_jobs",
        batch=batch_id,
        states=list(states) if states is not None else None,
        reasons=list(reasons) if reasons is not None else None,
    )
    return [row["id"] for row in rows]


def retry_job(db: Database, job_id: int, *, by: str) -> bool:
    """Starts an ended job anew from its base with its full budget; False if it has not ended. What was spent stays."""
    rows = db.run("job_spec", job=job_id)
    if not rows:
        raise BadInput(f"there is no job {job_id}")
    kind, told = first_step(JobSpec.model_validate(rows[0]["spec"]))
    return _reopen(db, job_id, by, kind, told, afresh=True)


def continue_job(db: Database, job_id: int, *, by: str, added: Amounts, wall_ms: int = 0) -> str:
    """Lets a job that ran out of its budget go on from where it stood, with so much more, and `wall_ms` more time.

    Returns `continued`; `unknown` or `other` for a job that did not end so; or what it would still be short of: a
    resource, or `deadline`. Then nothing has changed.
    """
    rows = db.run("continue_job", job=job_id, by=by, added=amounts_literal(added), wall_ms=wall_ms)
    return str(rows[0]["outcome"])


def verify_again(db: Database, job_id: int, *, by: str) -> bool:
    """Verifies an ended job's head again in new sandboxes, without running its agent; False if it has not ended."""
    return _reopen(db, job_id, by, "verify", {"on": "head", "fresh": True}, afresh=False)


def _reopen(db: Database, job_id: int, by: str, kind: str, told: dict[str, Any], *, afresh: bool) -> bool:
    rows = db.run("reopen_job", job=job_id, by=by, kind=kind, input=storable(told), afresh=afresh)
    return rows[0]["was"] is not None


def resolve_action(db: Database, action_id: str, *, done: bool, by: str) -> None:
    """Says what became of an uncertain effect, and lets its job go on. BadInput if the action is not uncertain."""
    outcome = db.run("resolve_action", action=action_id, done=done, by=by)[0]["outcome"]
    if outcome == "unknown":
        raise BadInput(f"there is no action {action_id}", remedy="`patchyard audit BATCH` lists what is uncertain")
    if outcome != "resolved":
        raise BadInput(
            f"action {action_id} is {outcome}, not uncertain", remedy="only an uncertain action can be resolved"
        )


class ActionRow(Record):
    """An action as the ledger has it, with the name of its job (BATCH/JOB)."""

    action_id: str
    job: str
    step_id: int
    tool: str
    effect: Effect
    state: Literal["intended", "done", "refused", "uncertain"]
    arguments: dict[str, Any]
    before_tree: str | None
    after_tree: str | None
    receipt: dict[str, Any] | None
    intended_at: datetime
    settled_at: datetime | None


def find_action(db: Database, ref: str) -> ActionRow:
    """The action whose id starts with `ref`. BadInput if there is none, or more than one."""
    rows = db.run("find_action", prefix=ref) if ref.isalnum() else []
    if not rows:
        raise BadInput(f"there is no action {ref}", remedy="`patchyard audit BATCH` lists what is uncertain")
    if len(rows) > 1:
        raise BadInput(f"several actions start with {ref}", remedy="give more of its id")
    return ActionRow.model_validate(rows[0])


def job_actions(db: Database, job_id: int) -> list[ActionRow]:
    """The actions of a job in the order of their intents."""
    return [ActionRow.model_validate(row) for row in db.run("actions_of_job", job=job_id)]


def audit_job(db: Database, job_id: int) -> list[Finding]:
    """What is wrong with a job's events, accounts, intents, steps and sandboxes; empty when all is in order."""
    found = [
        Finding(job_id=job_id, finding="event chain broken", detail={"seq": seq}) for seq in broken_links(db, job_id)
    ]
    found += [
        Finding(job_id=job_id, finding=row["finding"], detail=row["detail"]) for row in db.run("audit_job", job=job_id)
    ]
    return found


def jobs_of_batch(db: Database, batch_id: int) -> list[int]:
    """Ids of all jobs of a batch."""
    return [row["id"] for row in db.run("jobs_of_batch", batch=batch_id)]
