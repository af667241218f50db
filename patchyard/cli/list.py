"""`patchyard list`: all batches, newest first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ledger.reads import BatchRow, list_batches
from patchyard.cli.console import print_json, print_rows, say
from patchyard.cli.opened import opened_ledger
from patchyard.cli.units import STATE_ORDER, finished_of, states_line, time_text
from patchyard.printable import printable


def batch_row(batch: BatchRow) -> dict[str, Any]:
    """A batch for machines."""
    return {
        "id": batch.id,
        "name": batch.name,
        "jobs": batch.jobs,
        "finished": finished_of(batch.states),
        "states": {state: batch.states.get(state, 0) for state in STATE_ORDER},
        "weight": batch.weight,
        "max_parallel": batch.max_parallel,
        "submitted_at": batch.submitted_at.isoformat(),
        "finished_at": batch.finished_at.isoformat() if batch.finished_at else None,
        "paused_at": batch.paused_at.isoformat() if batch.paused_at else None,
    }


def show_batches(batches: list[BatchRow], as_json: bool, nothing: str) -> None:
    """The batches as a table, or as JSON; `nothing` is said when there are none."""
    if as_json:
        print_json([batch_row(batch) for batch in batches])
    elif not batches:
        say(nothing)
    else:
        rows = [
            (
                str(batch.id),
                printable(batch.name),
                f"{finished_of(batch.states)}/{batch.jobs}",
                states_line(batch.states) + (", paused" if batch.paused_at else ""),
                time_text(batch.submitted_at),
            )
            for batch in batches
        ]
        print_rows("id", "batch", "ended", "jobs", "submitted", rows=rows, flexible=("batch", "jobs"))


def command(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many batches.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """All batches, the newest first.

    Example: patchyard list --limit 10
    """
    with opened_ledger() as db:
        batches = list_batches(db, limit)
    show_batches(batches, as_json, "there are no batches; submit one with `patchyard submit FILE`")
