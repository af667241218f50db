"""`patchyard trace`: a job's events as a table, as JSON lines, or as a trajectory in the ATIF format."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from ledger.errors import BadInput
from ledger.events import EventRow, read_events
from patchyard.cli.console import print_json, print_rows, write_data
from patchyard.cli.opened import job_named, opened_ledger
from patchyard.cli.show import read_job
from patchyard.cli.story import event_words
from patchyard.trajectory import trajectory


class TraceFormat(StrEnum):
    """How a trace is printed."""

    TABLE = "table"
    JSONL = "jsonl"
    ATIF = "atif"


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="BATCH/JOB, or a job's id.")],
    form: Annotated[
        TraceFormat, typer.Option("--format", help="atif is the Agent Trajectory Interchange Format.")
    ] = TraceFormat.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """The events of a job, oldest first.

    Example: patchyard trace linkcheck-fixes/linkcheck-1 --format atif > trajectory.json
    """
    if as_json and form is TraceFormat.ATIF:
        raise BadInput(f"is the same as --format jsonl, not {form.value}", where="--json", remedy="give one of the two")
    with opened_ledger() as db:
        if form is TraceFormat.ATIF:
            found = read_job(db, job)
            print_json(trajectory(found.row, found.agents, found.steps))
            return
        events = read_events(db, job_named(db, job).id)
        if form is TraceFormat.JSONL or as_json:
            for event in events:
                write_data(json.dumps(event_row(event), ensure_ascii=False) + "\n")
            return
        columns = ("seq", "time", "event", "agent", "step", "what")
        print_rows(*columns, rows=map(_cells, events), flexible=("what",), spare=("agent", "step"))


def event_row(event: EventRow) -> dict[str, Any]:
    """An event for machines, with the hashes that chain it."""
    return event.model_dump(mode="json")


def _cells(event: EventRow) -> tuple[str, ...]:
    moment = event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    return (
        str(event.seq),
        moment,
        event.kind,
        str(event.agent_id or ""),
        str(event.step_id or ""),
        event_words(event.kind, event.body),
    )
