"""Submission and cancelling. A submission is one transaction: all of its jobs are there, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ledger.connect import Connection, Database, amounts_literal, run
from ledger.differences import change_words
from ledger.errors import BadInput
from ledger.objects import object_row
from ledger.records.base import sha256_hex
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec, JobSpec
from ledger.records.step import NewObject, StepKind
from ledger.statements import statement
from ledger.storable import storable

VERIFICATION_SHARE = 0.25
_CHUNK = 500
_CHUNK_BYTES = 4 * 1024 * 1024
_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True)
class Submitted:
    """The batch that a submission made (`created`), or found to be there already with the same jobs."""

    batch_id: int
    created: bool
    jobs: int


class _AlreadyThere(Exception):
    # No error: it rolls the transaction back.
    def __init__(self, submitted: Submitted) -> None:
        super().__init__()
        self.submitted = submitted


class Submission:
    """Jobs on their way into the ledger. Memory stays constant: jobs go to the database in chunks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[tuple[Any, ...]] = []
        self._stored: set[str] = set()
        self._objects: list[dict[str, Any]] = []
        self._object_bytes = 0
        self.result: Submitted | None = None

    def put_object(self, kind: str, data: bytes) -> str:
        """Stores bytes that jobs refer to and returns their SHA-256; the same bytes are sent once."""
        digest = sha256_hex(data)
        if digest not in self._stored:
            self._stored.add(digest)
            self._objects.append(object_row(kind, data))
            self._object_bytes += len(data)
            if len(self._objects) >= _CHUNK or self._object_bytes >= _CHUNK_BYTES:
                self._flush_objects()
        return digest

    def _flush_objects(self) -> None:
        if self._objects:
            with self._connection.cursor() as cursor:
                cursor.executemany(statement("put_object"), self._objects)
            self._objects.clear()
            self._object_bytes = 0

    def add(self, job: JobSpec) -> None:
        """Adds one job."""
        self._waiting.append(_staged_row(job))
        if len(self._waiting) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            with self._connection.cursor().copy(statement("copy_staged")) as copy:
                for row in self._waiting:
                    copy.write_row(row)
            self._waiting.clear()

    def finish(self, batch: BatchSpec) -> Submitted:
        """Writes the batch. The same name with the same jobs is the same batch; with others it is BadInput."""
        self._flush()
        self._flush_objects()
        run(self._connection, "lock_name", name=batch.name)
        known = run(self._connection, "batch_named", name=batch.name)
        if known:
            self._compare(batch, known[0])
            self.result = Submitted(batch_id=known[0]["id"], created=False, jobs=known[0]["jobs"])
            raise _AlreadyThere(self.result)
        batch_id = run(
            self._connection,
            "insert_batch",
            name=batch.name,
            weight=batch.weight,
            max_parallel=batch.max_parallel,
        )[0]["id"]
        written = self._connection.execute(statement("insert_jobs"), {"batch": batch_id, "name": batch.name}).rowcount
        self.result = Submitted(batch_id=batch_id, created=True, jobs=written)
        return self.result

    def _compare(self, batch: BatchSpec, known: dict[str, Any]) -> None:
        rows = run(self._connection, "differing_jobs", batch=known["id"], amount=_SHOWN_DIFFERENCES + 1)
        differences = [_difference(row) for row in rows[:_SHOWN_DIFFERENCES]]
        if len(rows) > _SHOWN_DIFFERENCES:
            differences.append("and more")
        differences += [
            f"{field} {known[field]!r} → {getattr(batch, field)!r}"
            for field in ("weight", "max_parallel")
            if known[field] != getattr(batch, field)
        ]
        if differences:
            raise BadInput(
                f"batch {batch.name} was submitted before and differs: {'; '.join(differences)}",
                remedy="submit the changed jobs under another name (--name)",
            )


def _difference(row: dict[str, Any]) -> str:
    old, new = row["old_spec"], row["new_spec"]
    if old is None:
        return f"job {row['key']} added"
    if new is None:
        return f"job {row['key']} removed"
    return f"job {row['key']} changed: {change_words(old, new)}"


def _staged_row(job: JobSpec) -> tuple[Any, ...]:
    granted = job.budget.amounts()
    reserve = Amounts(sandbox_ms=round(granted.sandbox_ms * VERIFICATION_SHARE))
    kind, told = first_step(job)
    return (
        job.key,
        storable(job.plain()),
        job.fingerprint(),
        job.priority,
        round(job.budget.wall_seconds * 1000),
        amounts_literal(granted),
        amounts_literal(reserve),
        job.base_tree,
        "",
        kind,
        storable(told),
    )


def first_step(job: JobSpec) -> tuple[StepKind, dict[str, Any]]:
    """Kind and input of a job's first step.

    A broken environment is found before the first token is spent: the red is shown on the base first.
    """
    if job.acceptance is not None and job.acceptance.red_on_base:
        return "verify", {"on": "base"}
    return "decide", {}


@contextmanager
def submission(db: Database) -> Iterator[Submission]:
    """One transaction in which jobs and objects are added and the batch is finished; an exception undoes all of it.

    `finish` must be the last call. When the batch was there already everything is rolled back and `result` says so.
    """
    collected: list[Submission] = []
    try:
        with db.transaction() as connection:
            run(connection, "stage")
            collected.append(Submission(connection))
            yield collected[0]
    except _AlreadyThere:
        return


def submit_batch(
    db: Database, batch: BatchSpec, jobs: Iterable[JobSpec], objects: Iterable[NewObject] = ()
) -> Submitted:
    """Submits a batch in one transaction, reading `jobs` as a stream. BadInput if the name is taken by other jobs."""
    with submission(db) as opened:
        for new in objects:
            opened.put_object(new.kind, new.data)
        for job in jobs:
            opened.add(job)
        opened.finish(batch)
    if opened.result is None:
        raise RuntimeError("the submission was not finished")
    return opened.result


@dataclass(frozen=True)
class Cancelled:
    """Of the jobs asked for: ended before, cancelled now, and those whose sandboxes have to be proved dead first."""

    ended: int
    cancelled: int
    cancelling: int


def request_cancel(db: Database, *, by: str, batch_id: int | None = None, job_id: int | None = None) -> Cancelled:
    """Cancels a job or all unfinished jobs of a batch. Repeating it is harmless."""
    wanted = [job_id] if job_id is not None else [row["id"] for row in db.run("unfinished_jobs", batch=batch_id)]
    outcomes = [db.run("request_cancel", job=job, by=by)[0]["outcome"] for job in wanted]
    return Cancelled(
        ended=outcomes.count("ended"),
        cancelled=outcomes.count("cancelled"),
        cancelling=outcomes.count("cancelling"),
    )


def pause_batch(db: Database, batch_id: int, *, by: str) -> str:
    """From now on no step of the batch is begun. `paused`, or `unknown`, `finished`, or `before`: it was paused."""
    return str(db.run("pause_batch", batch=batch_id, by=by)[0]["outcome"])


def resume_batch(db: Database, batch_id: int) -> str:
    """Its steps may begin again; the clocks of its jobs stood still. `resumed`, or `unknown`, or `before`: it was not
    paused."""
    return str(db.run("resume_batch", batch=batch_id)[0]["outcome"])
