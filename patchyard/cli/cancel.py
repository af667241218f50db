"""`patchyard cancel`: stops a batch or a job, and shows that nothing of it is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import typer

from ledger.batches import Cancelled, request_cancel
from ledger.connect import Database
from ledger.errors import BadInput
from ledger.reads import BatchRow, JobRow, SandboxHistory, batch_progress, job_sandboxes, list_jobs, unfinished
from ledger.records.job import TERMINAL, JobState
from ledger.sandboxes import SandboxRow, live_sandboxes
from patchyard.cli.console import ExitStatus, leave, print_json, say
from patchyard.cli.opened import batch_named, job_named, opened_ledger
from patchyard.cli.story import short
from patchyard.cli.units import counted, finished_of, time_text
from patchyard.printable import printable
from patchyard.who import who

Row = TypeVar("Row", BatchRow, JobRow)
_POLL_SECONDS = 0.3
_MAY_HAVE_SANDBOXES: list[JobState] = ["running", "awaiting_approval", "verifying", "publishing", "cancelled"]
"""Cancelled ones too: asked again, the same command shows the same proof."""
_PAGE = 1000


@dataclass(frozen=True)
class Target:
    """What is to be cancelled: a batch, or a job of it. `active` are the ids of jobs that have or had sandboxes, or may
    have."""

    name: str
    batch_id: int
    job_id: int | None
    active: frozenset[int]


def command(
    target: Annotated[
        str, typer.Argument(metavar="BATCH|JOB", help="A batch's name or id, or a job: BATCH/JOB or its id.")
    ],
    wait_seconds: Annotated[float, typer.Option(min=0, help="How long to wait for the proof of cleanup.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the proof as JSON.")] = False,
) -> None:
    """Stop a batch or a job, wait until each of its sandboxes is proved dead, and print the proof.

    Exits 1 with the list of what is left if the proof does not come in time.

    Example: patchyard cancel linkcheck-fixes
    """
    with opened_ledger() as db:
        found = find_target(db, target)
        ended = _ended_jobs(db, found)
        asked = request_cancel(db, by=who(), batch_id=found.batch_id, job_id=found.job_id)
        found = replace(found, active=found.active | _active_jobs(db, found))  # some may have started in between
        try:
            open_jobs, left = _wait(db, found, wait_seconds)
        except KeyboardInterrupt:
            say(f"patchyard: interrupted; the cancelling of {found.name} goes on: the same command shows its proof")
            leave(ExitStatus.INTERRUPTED)
        proof = [sandbox for job in sorted(found.active) for sandbox in job_sandboxes(db, job)]
    _show(found, replace(asked, ended=ended), open_jobs, left, proof, as_json)
    leave(ExitStatus.NOT_ALL_DONE if open_jobs or left else ExitStatus.DONE)


def find_target(db: Database, ref: str) -> Target:
    """The batch or the job that `ref` names. Raises BadInput for nothing, and for a number that is both."""
    job = _found(lambda: job_named(db, ref))
    batch = None if "/" in ref else _found(lambda: batch_named(db, ref))
    if job is not None and batch is not None:
        remedy = f"name the batch {printable(batch.name)}, or the job {printable(job.batch_name)}/{printable(job.key)}"
        raise BadInput(f"{ref} is the id of a batch and of a job", remedy=remedy)
    if job is not None:
        name = f"{printable(job.batch_name)}/{printable(job.key)}"
        return Target(name, job.batch_id, job.id, frozenset([job.id]))
    batch = batch or batch_named(db, ref)
    target = Target(printable(batch.name), batch.id, None, frozenset())
    return replace(target, active=_active_jobs(db, target))


def _found(look: Callable[[], Row]) -> Row | None:
    try:
        return look()
    except BadInput:
        return None


def _active_jobs(db: Database, target: Target) -> frozenset[int]:
    """Ids of the target's jobs that have started, and not ended or been cancelled."""
    if target.job_id is not None:
        return target.active
    found: set[int] = set()
    after = 0
    while page := list_jobs(db, target.batch_id, states=_MAY_HAVE_SANDBOXES, after_id=after, limit=_PAGE):
        found.update(job.id for job in page if job.started_at is not None)
        after = page[-1].id
    return frozenset(found)


def _wait(db: Database, target: Target, wait_seconds: float) -> tuple[int, list[SandboxRow]]:
    """How many jobs have not ended and which sandboxes are not proved dead, when none are left or the time is up."""
    deadline = time.monotonic() + wait_seconds
    said = False
    while True:
        open_jobs, left = _open_jobs(db, target), _live(db, target)
        if (not open_jobs and not left) or time.monotonic() >= deadline:
            return open_jobs, left
        if not said:
            said = True
            say(f"waiting for the proof of cleanup: {counted(open_jobs, 'job')} not ended, {_boxes(left)} not dead")
        time.sleep(_POLL_SECONDS)


def _boxes(found: list[SandboxRow]) -> str:
    return "1 sandbox" if len(found) == 1 else f"{len(found)} sandboxes"


def _ended_jobs(db: Database, target: Target) -> int:
    if target.job_id is None:
        return finished_of(batch_progress(db, target.batch_id).states)
    return 1 - _open_jobs(db, target)


def _open_jobs(db: Database, target: Target) -> int:
    if target.job_id is None:
        return unfinished(db, target.batch_id)
    return int(job_named(db, str(target.job_id)).state not in TERMINAL)


def _live(db: Database, target: Target) -> list[SandboxRow]:
    if target.job_id is not None:
        return live_sandboxes(db, job_id=target.job_id)
    return [sandbox for sandbox in live_sandboxes(db) if sandbox.job_id in target.active]


def _show(
    target: Target,
    asked: Cancelled,
    open_jobs: int,
    left: list[SandboxRow],
    proof: list[SandboxHistory],
    as_json: bool,
) -> None:
    gone = [sandbox for sandbox in proof if sandbox.state == "removed"]
    if as_json:
        print_json(_row(target, asked, open_jobs, left, gone))
        return
    stopped = counted(asked.cancelled + asked.cancelling, "job")
    print(f"{target.name}: {stopped} cancelled, {asked.ended} had ended before")
    for sandbox in gone:
        evidence = f": {short(sandbox.evidence)}" if sandbox.evidence else ""
        print(f"  gone: {printable(sandbox.name)} removed {time_text(sandbox.removed_at)}{evidence}")
    for alive in left:
        print(f"  left: {printable(alive.name)} on {printable(alive.engine_host)} is {alive.state}")
    if open_jobs or left:
        what = f"{counted(open_jobs, 'job')} not ended, {_boxes(left)} not proved dead"
        say(f"patchyard: {what}; the same command looks again")
    else:
        print(f"  nothing is left: every job has ended, and all sandboxes ({len(gone)}) are proved dead")


def _row(
    target: Target, asked: Cancelled, open_jobs: int, left: list[SandboxRow], gone: list[SandboxHistory]
) -> dict[str, Any]:
    return {
        "target": target.name,
        "cancelled": asked.cancelled + asked.cancelling,
        "ended_before": asked.ended,
        "not_ended": open_jobs,
        "left": [sandbox.model_dump(mode="json") for sandbox in left],
        "gone": [sandbox.model_dump(mode="json") for sandbox in gone],
    }
