"""`patchyard replay`: runs a job again from its recorded decisions, and compares the trees."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.reads import find_batch, find_job
from patchyard.cli.console import ExitStatus, leave, print_json, say
from patchyard.cli.opened import opened_ledger
from patchyard.cli.units import stated_reason
from patchyard.cli.watch import watch_batch
from patchyard.printable import printable
from patchyard.replaying import end_was_decided, first_difference, replayed_job, submit_replay


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="BATCH/JOB, or a job's id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Run an ended job again from its recorded decisions, and compare each head tree and the end.

    The replay is a batch of its own. Exits 1 and shows the first difference if the two runs part.

    Example: patchyard replay linkcheck-fixes/linkcheck-1
    """
    with opened_ledger() as db:
        original = find_job(db, job)
        submitted = submit_replay(db, original)
        batch = find_batch(db, str(submitted.batch_id))
        say(f"patchyard: replaying as {printable(batch.name)}")
        if watch_batch(db, batch) is ExitStatus.INTERRUPTED:
            leave(ExitStatus.INTERRUPTED)
        again = replayed_job(db, submitted, original.key)
        difference = first_difference(db, original, again)
    name = f"{printable(original.batch_name)}/{printable(original.key)}"
    if as_json:
        shown = None if difference is None else vars(difference)
        print_json({"job": name, "replay": batch.name, "same": difference is None, "difference": shown})
    elif difference is None:
        decided = f"to the end ({again.state}, {stated_reason(str(again.reason))})"
        outside = f"up to where {stated_reason(str(original.reason))} ended it"
        print(f"{name}: the replay is the same, head by head, {decided if end_was_decided(original) else outside}")
    else:
        print(f"{name}: the replay parts at {difference.at}: it was {difference.original}, now {difference.replayed}")
    leave(ExitStatus.DONE if difference is None else ExitStatus.NOT_ALL_DONE)
