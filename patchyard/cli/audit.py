"""`patchyard audit`: whether the books of a job or a batch are in order."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.afterwards import Finding, audit_job, jobs_of_batch
from patchyard.cli.cancel import find_target
from patchyard.cli.console import ExitStatus, leave, print_json, print_table, table
from patchyard.cli.opened import opened_ledger
from patchyard.cli.story import short
from patchyard.cli.units import counted


def command(
    target: Annotated[str, typer.Argument(metavar="JOB|BATCH", help="A batch's name or id, or BATCH/JOB.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check the event chain, the accounts' conservation, intents without receipts, open steps and sandboxes.

    Exits 1 if anything is not as it must be.

    Example: patchyard audit linkcheck-fixes
    """
    with opened_ledger() as db:
        found = find_target(db, target)
        jobs = [found.job_id] if found.job_id is not None else jobs_of_batch(db, found.batch_id)
        findings = [finding for job in jobs for finding in audit_job(db, job)]
    _show(found.name, len(jobs), findings, as_json)
    leave(ExitStatus.NOT_ALL_DONE if findings else ExitStatus.DONE)


def _show(name: str, jobs: int, findings: list[Finding], as_json: bool) -> None:
    if as_json:
        rows = [{"job_id": one.job_id, "finding": one.finding, "detail": one.detail} for one in findings]
        print_json({"target": name, "jobs": jobs, "findings": rows})
        return
    if findings:
        rows_of_text = ((str(one.job_id), one.finding, short(one.detail)) for one in findings)
        print_table(table("job", "finding", "detail", rows=rows_of_text))
    print(f"{name}: {counted(jobs, 'job')} audited, {counted(len(findings), 'finding')}")
