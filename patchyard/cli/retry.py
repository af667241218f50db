"""`patchyard retry`: new attempts for chosen jobs of a batch, and only for those."""

from __future__ import annotations

from typing import Annotated, TypeVar, get_args

import typer

from ledger.afterwards import ended_jobs, retry_job
from ledger.errors import BadInput
from ledger.reads import find_batch
from ledger.records.job import TERMINAL, JobState, Reason
from patchyard.cli.console import print_json
from patchyard.cli.opened import opened_ledger
from patchyard.printable import printable
from patchyard.who import who

Name = TypeVar("Name", JobState, Reason)


def command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's name or id.")],
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be given again.")] = None,
    reason: Annotated[list[str] | None, typer.Option(help="Only jobs that ended so; may be given again.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ids as JSON.")] = False,
) -> None:
    """Start ended jobs of a batch anew, from their base and with a full budget. What was spent before stays on record.

    Without --state and --reason: every job that has ended and is not completed.

    Example: patchyard retry linkcheck-fixes --state failed --reason environment_failed
    """
    states = _chosen(state, TERMINAL, "--state")
    known_reasons: tuple[Reason, ...] = get_args(Reason)
    reasons = _chosen(reason, known_reasons, "--reason")
    if states is None and reasons is None:
        states = [name for name in TERMINAL if name != "completed"]
    with opened_ledger() as db:
        found = find_batch(db, batch)
        chosen = ended_jobs(db, found.id, states=states, reasons=reasons)
        retried = [job for job in chosen if retry_job(db, job, by=who())]
    if as_json:
        print_json({"batch": found.name, "retried": retried})
    else:
        print(f"{printable(found.name)}: {len(retried)} jobs start anew; follow them with `patchyard watch {batch}`")


def _chosen(given: list[str] | None, known: tuple[Name, ...], option: str) -> list[Name] | None:
    if not given:
        return None
    by_name = dict(zip(known, known, strict=True))
    for name in given:
        if name not in by_name:
            raise BadInput(f"there is no {name!r}", where=option, remedy=f"use one of {', '.join(known)}")
    return [by_name[name] for name in given]  # type: ignore[index]
