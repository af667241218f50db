"""What the face shows: batches, jobs, steps, accounts, results. Reads only; nothing here waits for a lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow

from ledger.connect import Database, parse_amounts
from ledger.errors import BadInput
from ledger.records.base import Record
from ledger.records.budget import Amounts
from ledger.records.job import JobSpec, JobState, Reason
from ledger.sandboxes import SandboxPurpose, SandboxState
from ledger.statements import statement

_AMOUNTS = ("granted", "held", "spent", "delegated", "free", "reserve")


class BatchRow(Record):
    """A batch; `states` counts its jobs by state (only in lists)."""

    id: int
    name: str
    weight: float
    max_parallel: int | None
    jobs: int
    submitted_at: datetime
    finished_at: datetime | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    states: dict[JobState, int] = {}


class Progress(Record):
    """How far a batch is. Amounts are sums over its jobs."""

    total: int
    states: dict[JobState, int]
    active_jobs: int
    running_agents: int
    spent: Amounts
    granted: Amounts
    first_started: datetime | None
    last_finished: datetime | None
    paused: bool = False


class JobLine(Record):
    """A job in a list."""

    id: int
    key: str
    batch_id: int
    state: JobState
    reason: Reason | None
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    files_changed: int | None
    spent: Amounts
    granted: Amounts


class JobRow(Record):
    """A job with its specification and its end."""

    id: int
    key: str
    batch_id: int
    batch_name: str
    state: JobState
    reason: Reason | None
    spec: JobSpec
    head_tree: str
    verdict: dict[str, Any] | None
    patch_sha256: str | None
    published: dict[str, Any] | None
    files_changed: int | None
    submitted_at: datetime
    admitted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None


class StepRow(Record):
    """A step of a job."""

    id: int
    agent_id: int
    seq: int
    kind: str
    queue: str
    state: str
    attempt: int
    fence: int
    lease_owner: str | None
    input: dict[str, Any]
    result: dict[str, Any] | None
    spent: Amounts
    created_at: datetime
    offered_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class AccountRow(Record):
    """An agent's account: granted = spent + held + delegated + free."""

    granted: Amounts
    held: Amounts
    spent: Amounts
    delegated: Amounts
    free: Amounts
    reserve: Amounts


class AgentRow(Record):
    """An agent with its account."""

    id: int
    parent_id: int | None
    role: str
    goal: str
    head_tree: str
    model_state: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
    account: AccountRow


class SandboxHistory(Record):
    """A sandbox of a job, live or gone, with the evidence of its end; `probe_id` is the probe that allowed it."""

    name: str
    step_id: int
    fence: int
    engine_host: str
    image: str
    purpose: SandboxPurpose
    probe_id: int | None
    state: SandboxState
    evidence: dict[str, Any]
    registered_at: datetime
    removed_at: datetime | None


class ResultRow(Record):
    """All that a results row needs; times of steps are sums in milliseconds."""

    batch: str
    job: str
    job_id: int
    state: JobState
    reason: Reason | None
    base: str
    tree: str
    patch_sha256: str | None
    published: dict[str, Any] | None
    files_changed: int | None
    verdict: dict[str, Any] | None
    granted: Amounts
    spent: Amounts
    agents: int
    steps: int
    attempts: int
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    model: str
    queued_ms: int
    deciding_ms: int
    sandbox_ms: int
    verifying_ms: int


def _with_amounts(row: DictRow) -> dict[str, Any]:
    return {key: parse_amounts(value) if key in _AMOUNTS else value for key, value in row.items()}


def find_batch(db: Database, ref: str) -> BatchRow:
    """The batch of that name, else of that id. BadInput if there is none."""
    rows = db.run("find_batch", ref=ref, id=_as_id(ref))
    if not rows:
        raise BadInput(f"there is no batch {ref}", remedy="`patchyard list` shows the batches")
    return BatchRow.model_validate(rows[0])


def list_batches(db: Database, limit: int = 50) -> list[BatchRow]:
    """The newest batches first, each with its jobs by state."""
    rows = db.run("list_batches", amount=limit)
    return [BatchRow.model_validate({**row, "states": row["states"] or {}}) for row in rows]


def batch_progress(db: Database, batch_id: int) -> Progress:
    """Counts by state, spend and times of one batch."""
    states = {row["state"]: row["n"] for row in db.run("state_counts", batch=batch_id)}
    times = db.run("batch_times", batch=batch_id)[0]
    accounts = db.run("batch_accounts", batch=batch_id)[0]
    return Progress(
        total=sum(states.values()),
        states=states,
        active_jobs=times["active"],
        running_agents=db.run("leased_agents", batch=batch_id)[0]["running"],
        spent=parse_amounts(accounts["spent"]),
        granted=parse_amounts(accounts["granted"]),
        first_started=times["first_started"],
        last_finished=times["last_finished"],
        paused=bool(times["paused"]),
    )


def batch_account(db: Database, batch_id: int) -> AccountRow:
    """The accounts of a batch's jobs, added up."""
    rows = db.run("batch_account", batch=batch_id)
    return AccountRow.model_validate({row["part"]: parse_amounts(row["amount"]) for row in rows})


def unfinished(db: Database, batch_id: int) -> int:
    """How many jobs of a batch have not ended."""
    return int(db.run("unfinished", batch=batch_id)[0]["n"])


def find_job(db: Database, ref: str) -> JobRow:
    """The job named BATCH/JOB (batch by name or id), or by its id. BadInput if there is none."""
    batch, slash, key = ref.partition("/")
    rows = db.run(
        "find_job",
        id=None if slash else _as_id(ref),
        batch=batch if slash else None,
        batch_id=_as_id(batch) if slash else None,
        key=key if slash else None,
    )
    if not rows:
        raise BadInput(f"there is no job {ref}", remedy="name it BATCH/JOB; `patchyard status BATCH` shows its jobs")
    return JobRow.model_validate({key: rows[0][key] for key in JobRow.model_fields})


def verdict_of(db: Database, job_id: int) -> dict[str, Any]:
    """The latest verdict on a job; empty if it has none."""
    rows = db.run("verdict_of", job=job_id)
    return (rows[0]["verdict"] or {}) if rows else {}


def list_jobs(
    db: Database, batch_id: int, *, states: Sequence[JobState] | None = None, after_id: int = 0, limit: int = 1000
) -> list[JobLine]:
    """Jobs of a batch by id, a page at a time."""
    wanted = list(states) if states is not None else None
    rows = db.run("list_jobs", batch=batch_id, after=after_id, states=wanted, amount=limit)
    return [JobLine.model_validate(_with_amounts(row)) for row in rows]


def job_steps(db: Database, job_id: int) -> list[StepRow]:
    """The steps of a job, agent by agent."""
    return [StepRow.model_validate(_with_amounts(row)) for row in db.run("job_steps", job=job_id)]


def job_agents(db: Database, job_id: int) -> list[AgentRow]:
    """The agents of a job, the root first, each with its account."""
    found = []
    for row in db.run("job_agents", job=job_id):
        plain = _with_amounts(row)
        account = AccountRow(**{name: plain.pop(name) for name in _AMOUNTS})
        found.append(AgentRow(account=account, **plain))
    return found


def job_sandboxes(db: Database, job_id: int) -> list[SandboxHistory]:
    """Every sandbox that a job ever had, oldest first."""
    return [SandboxHistory.model_validate(row) for row in db.run("job_sandboxes", job=job_id)]


def iter_results(db: Database, batch_id: int) -> Iterator[ResultRow]:
    """One row a job, by a server-side cursor, so that memory stays constant."""
    with db.transaction() as connection, connection.cursor(name="results") as cursor:
        cursor.execute(statement("results"), {"batch": batch_id})
        for row in cursor:
            yield ResultRow.model_validate(_with_amounts(row))


def _as_id(ref: str) -> int | None:
    return int(ref) if ref.isascii() and ref.isdigit() and len(ref) < 19 else None
