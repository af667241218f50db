"""`patchyard budget`: the accounts of a job, agent by agent, or of a batch in sum."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ledger.connect import Database
from ledger.reads import batch_account, batch_progress, job_agents
from ledger.records.budget import RESOURCES
from patchyard.cli.cancel import find_target
from patchyard.cli.console import print_json, print_table, table
from patchyard.cli.opened import opened_ledger
from patchyard.cli.show import print_accounts
from patchyard.cli.units import amount_text, counted, stated_name
from patchyard.results import amounts_row

_PARTS = ("granted", "spent", "held", "delegated", "free")


def command(
    target: Annotated[str, typer.Argument(metavar="JOB|BATCH", help="A batch's name or id, or BATCH/JOB.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the accounts as JSON.")] = False,
) -> None:
    """The accounts: granted, held, spent, delegated and free, per resource.

    Example: patchyard budget linkcheck-fixes/linkcheck-1
    """
    with opened_ledger() as db:
        found = find_target(db, target)
        if found.job_id is None:
            _show_batch(db, found.name, found.batch_id, as_json)
        else:
            _show_job(db, found.name, found.job_id, as_json)


def _show_job(db: Database, name: str, job_id: int, as_json: bool) -> None:
    agents = job_agents(db, job_id)
    if as_json:
        print_json({"job": name, "agents": [agent.model_dump(mode="json") for agent in agents]})
        return
    print(name)
    print_accounts(agents)


def _show_batch(db: Database, name: str, batch_id: int, as_json: bool) -> None:
    jobs, account = batch_progress(db, batch_id).total, batch_account(db, batch_id)
    sums: dict[str, dict[str, Any]] = {part: amounts_row(getattr(account, part)) for part in _PARTS}
    if as_json:
        print_json({"batch": name, "jobs": jobs, **sums})
        return
    print(f"{name}: {counted(jobs, 'job')}")
    rows = ((stated_name(r), *(amount_text(r, sums[part][r]) for part in _PARTS)) for r in RESOURCES)
    print_table(table("resource", *_PARTS, rows=rows))
