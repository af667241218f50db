"""`patchyard status`: the batches that are not finished, or the jobs of one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args

import typer

from ledger.connect import Database
from ledger.errors import BadInput
from ledger.reads import BatchRow, JobLine, Progress, batch_progress, list_batches, list_jobs
from ledger.records.job import JobState
from patchyard.cli.console import print_json, print_line, print_rows, say
from patchyard.cli.list import batch_row, show_batches
from patchyard.cli.opened import batch_named, opened_ledger
from patchyard.cli.units import (
    counted,
    finished_of,
    reason_words,
    span_text,
    spend_text,
    state_words,
    states_line,
    time_text,
    usd_text,
)
from patchyard.printable import printable
from patchyard.results import amounts_row

_PAGE = 1000
_SHOWN = 100


def command(
    batch: Annotated[str | None, typer.Argument(metavar="BATCH", help="A batch's name or id.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"At most so many jobs: {_SHOWN} in a table, all with --json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """The jobs of a batch, or all batches that are not finished.

    Example: patchyard status linkcheck-fixes --state failed
    """
    states = _states(state)
    with opened_ledger() as db:
        if batch is None:
            unfinished = [found for found in list_batches(db, _PAGE) if finished_of(found.states) < found.jobs]
            show_batches(unfinished, as_json, "no batch is unfinished; `patchyard list` shows all")
            return
        found = batch_named(db, batch)
        progress = batch_progress(db, found.id)
        if as_json:
            jobs = [_job_row(job) for job in _jobs(db, found.id, states, limit)]
            print_json(batch_row(_with_states(found, progress)) | {"jobs_shown": jobs})
            return
        jobs_shown = list(_jobs(db, found.id, states, limit or _SHOWN))
    _print_jobs(found, progress, jobs_shown, states)


def _states(given: Sequence[str] | None) -> list[JobState] | None:
    known: tuple[JobState, ...] = get_args(JobState)
    chosen = [name for name in known if name in (given or ())]
    wrong = next((name for name in given or () if name not in known), None)
    if wrong is not None:
        raise BadInput(f"unknown state {printable(wrong)!r}", where="--state", remedy=f"use one of {', '.join(known)}")
    return chosen or None


def _jobs(db: Database, batch_id: int, states: list[JobState] | None, limit: int | None) -> Iterator[JobLine]:
    """At most `limit` jobs in the order of the batch, a page at a time."""
    after, left = 0, limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(left, _PAGE)
        page = list_jobs(db, batch_id, states=states, after_id=after, limit=size)
        yield from page
        if len(page) < size:
            return
        after, left = page[-1].id, None if left is None else left - size


def _with_states(batch: BatchRow, progress: Progress) -> BatchRow:
    return batch.model_copy(update={"states": progress.states})


def _job_row(job: JobLine) -> dict[str, Any]:
    moments = {name: getattr(job, name) for name in ("submitted_at", "started_at", "finished_at", "deadline_at")}
    return {
        "id": job.id,
        "job": job.key,
        "state": job.state,
        "reason": job.reason,
        "files_changed": job.files_changed,
        "granted": amounts_row(job.granted),
        "spent": amounts_row(job.spent),
        **{name: moment.isoformat() if moment else None for name, moment in moments.items()},
    }


def _print_jobs(batch: BatchRow, progress: Progress, jobs: list[JobLine], states: list[JobState] | None) -> None:
    rows = [
        (
            printable(job.key),
            state_words(job.state),
            reason_words(job.reason, job.spent, job.granted, (job.started_at, job.finished_at, job.deadline_at)),
            f"{job.spent.steps}/{job.granted.steps}",
            usd_text(job.spent.cost_microusd),
            "" if job.files_changed is None else str(job.files_changed),
            span_text(job.started_at, job.finished_at),
        )
        for job in jobs
    ]
    columns = ("job", "state", "reason", "steps", "cost", "files", "time")
    print_rows(*columns, rows=rows, flexible=("job",), spare=("files", "cost", "steps", "time"))
    total = progress.total if states is None else sum(progress.states.get(state, 0) for state in states)
    if len(jobs) < total:
        say(f"{counted(total - len(jobs), 'more job')}; --limit {total} shows all")
    print_line(
        f"{printable(batch.name)}: {finished_of(progress.states)}/{progress.total} ended"
        f" ({states_line(progress.states)}), {spend_text(progress.spent)}"
    )
    if batch.paused_at is not None:
        by = f" by {printable(batch.paused_by)}" if batch.paused_by else ""
        print_line(f"paused {time_text(batch.paused_at)}{by}; `patchyard resume {printable(batch.name)}` lets it go on")
