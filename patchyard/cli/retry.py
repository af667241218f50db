"""`patchyard retry`: new attempts for chosen jobs of a batch and only for those, or more budget for what ran out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar, get_args

import typer

from ledger.afterwards import continue_job, ended_jobs, retry_job
from ledger.connect import Database
from ledger.errors import BadInput
from ledger.reads import BatchRow, find_batch, find_job
from ledger.records.budget import Amounts, Budget
from ledger.records.job import TERMINAL, JobState, Reason
from patchyard.cli.console import print_json
from patchyard.cli.opened import opened_ledger
from patchyard.cli.units import counted, stated_name, stated_reason
from patchyard.more_budget import more_budget
from patchyard.printable import printable
from patchyard.who import who

Name = TypeVar("Name", JobState, Reason)
_OPTION = "--add-budget"
_FOLLOW = "follow with `patchyard watch {}`"


def command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's name or id.")],
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be given again.")] = None,
    reason: Annotated[list[str] | None, typer.Option(help="Only jobs that ended so; may be given again.")] = None,
    add_budget: Annotated[
        list[str] | None,
        typer.Option(
            _OPTION,
            metavar="NAME=AMOUNT",
            help="Let jobs that ran out of budget go on from where they stood, with so much more, named as in the "
            f"batch file: {', '.join(Budget.model_fields)}; may be given again.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ids as JSON.")] = False,
) -> None:
    """Start ended jobs of a batch anew, from their base and with a full budget. What was spent before stays on record.

    Without --state and --reason: every job that has ended and is not completed. With --add-budget: every job that ran
    out of budget, which goes on with its tree and its turns so far.

    Example: patchyard retry linkcheck-fixes --state failed --reason environment_failed

    Example: patchyard retry linkcheck-fixes --reason budget:cost_usd --add-budget cost_usd=1
    """
    states = _chosen(state, TERMINAL, "--state")
    known_reasons: tuple[Reason, ...] = get_args(Reason)
    reasons = _chosen(reason, known_reasons, "--reason", stated_reason)
    more = more_budget(add_budget, _OPTION) if add_budget else None
    if more is not None:
        if states not in (None, ["budget_exhausted"]):
            raise BadInput(
                "only a job that ran out of budget goes on with more", where="--state", remedy="leave --state away"
            )
        states = ["budget_exhausted"]
    elif states is None and reasons is None:
        states = [name for name in TERMINAL if name != "completed"]
    with opened_ledger() as db:
        found = find_batch(db, batch)
        chosen = ended_jobs(db, found.id, states=states, reasons=reasons)
        if more is not None:
            _go_on(db, found, chosen, *more, as_json=as_json)
            return
        retried = [job for job in chosen if retry_job(db, job, by=who())]
    if as_json:
        print_json({"batch": found.name, "retried": retried})
    else:
        start = "starts" if len(retried) == 1 else "start"
        print(f"{_name(found)}: {counted(len(retried), 'job')} {start} anew; {_FOLLOW.format(_name(found))}")


def _go_on(db: Database, batch: BatchRow, chosen: list[int], added: Amounts, wall_ms: int, *, as_json: bool) -> None:
    """Raises BadInput where no job can go on."""
    outcomes = {job: continue_job(db, job, by=who(), added=added, wall_ms=wall_ms) for job in chosen}
    going_on = [job for job, outcome in outcomes.items() if outcome == "continued"]
    short = {job: outcome for job, outcome in outcomes.items() if outcome not in ("continued", "unknown", "other")}
    if not going_on:
        lacks = sorted(set(map(_to_add, short.values())))
        raise BadInput(
            f"no job of {_name(batch)} can go on with this: "
            + (f"they ran out of {', '.join(lacks)}" if lacks else "none ran out of budget"),
            where=_OPTION,
            remedy=f"add what they lack; `patchyard status {_name(batch)}` names it",
        )
    if as_json:
        lacks_of = {str(job): lack for job, lack in short.items()}
        print_json({"batch": batch.name, "continued": going_on, "short": lacks_of})
        return
    go, where = ("goes", "it") if len(going_on) == 1 else ("go", "they")
    follow = _FOLLOW.format(_name(batch))
    print(f"{_name(batch)}: {counted(len(going_on), 'job')} {go} on from where {where} stood; {follow}")
    for job, lack in short.items():
        print(f"{printable(find_job(db, str(job)).key)} does not: it ran out of {_to_add(lack)}, and none was added")


def _to_add(lack: str) -> str:
    """What a job is short of, by the name that --add-budget and the batch file have for it."""
    return "wall_seconds" if lack == "deadline" else stated_name(lack)


def _name(batch: BatchRow) -> str:
    return printable(batch.name)


def _chosen(
    given: list[str] | None, known: tuple[Name, ...], option: str, shown: Callable[[str], str] = str
) -> list[Name] | None:
    """The known names that are given, each as it is or as it is shown to people."""
    if not given:
        return None
    by_name: dict[str, Name] = {spelling: name for name in known for spelling in (name, shown(name))}
    for name in given:
        if name not in by_name:
            raise BadInput(f"there is no {name!r}", where=option, remedy=f"use one of {', '.join(map(shown, known))}")
    return [by_name[name] for name in given]
