"""Steps: what a worker gets with a lease, and what it gives back."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ledger.records.base import Record
from ledger.records.budget import Amounts
from ledger.records.job import JobSpec, JobState, Reason

StepKind = Literal["decide", "act", "verify", "publish"]
Queue = Literal["decide", "sandbox", "publish"]
QUEUE_OF: dict[StepKind, Queue] = {
    "decide": "decide",
    "act": "sandbox",
    "verify": "sandbox",
    "publish": "publish",
}


class Claim(Record):
    """A lease on one step: with it, and only until `lease_expires_at`, the step may be completed.

    `fence` grows with every claim of the step; `attempt` counts the tries. `cancelling` says that the job has to
    end (it was cancelled, or is out of time, budget or attempts) while a former attempt may have left something: prove
    that it is gone, then complete with `end=end_with`.
    `remaining_ms` is the time left until the job's deadline. `free` is what the account has left for exploration
    (`reserve`, kept for verification, is not in it), `held` is what this claim holds. `model_state` is what the agent's
    model wants to remember between calls (a replay's position).
    """

    step_id: int
    fence: int
    attempt: int
    kind: StepKind
    seq: int
    job_id: int
    batch_id: int
    batch_name: str
    agent_id: int
    job: JobSpec
    head_tree: str
    input: dict[str, Any]
    free: Amounts
    held: Amounts = Amounts()
    reserve: Amounts
    model_state: dict[str, Any] = {}
    recent: tuple[str, ...] = ()
    submitted_at: datetime
    deadline_at: datetime
    remaining_ms: int
    cancelling: bool = False
    end_with: Reason = "cancelled_by_user"


class NextStep(Record):
    """The step that follows, written in the completing transaction. `delay_seconds` keeps it back."""

    kind: StepKind
    input: dict[str, Any] = {}
    delay_seconds: float = 0.0


class NewObject(Record):
    """Bytes to be stored by their SHA-256 with the completion: `pack`, `output`, `report`, `patch` …"""

    kind: str
    data: bytes


class Event(Record):
    """One line of a job's history."""

    kind: str
    body: dict[str, Any] = {}


class Completion(Record):
    """The outcome of a step, written once, in one transaction, by the holder of its lease.

    Exactly one of `next` and `end` is given: the step that follows, or the reason for which the job ends.
    `head_tree`, if given, becomes the agent's head if that still is `claim.head_tree`; `packs` hold its new objects.
    `spent` settles the step's hold, what was held over it becomes free again. `mark` is the turn's fingerprint.
    """

    result: dict[str, Any]
    spent: Amounts = Amounts()
    next: NextStep | None = None
    end: Reason | None = None
    job_state: JobState | None = None
    head_tree: str | None = None
    objects: tuple[NewObject, ...] = ()
    events: tuple[Event, ...] = ()
    action_id: str | None = None
    receipt: dict[str, Any] | None = None
    action_state: Literal["done", "refused", "uncertain"] = "done"
    model_state: dict[str, Any] | None = None
    mark: str | None = None
    verdict: dict[str, Any] | None = None
    patch_sha256: str | None = None
    published: dict[str, Any] | None = None
    files_changed: int | None = None


class Offer(Record):
    """A step to be sent to a queue."""

    step_id: int
    queue: Queue
