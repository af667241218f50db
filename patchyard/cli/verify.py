"""`patchyard verify`: verifies a job's result again, without running its agent."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.afterwards import verify_again
from ledger.errors import BadInput
from ledger.reads import find_job
from patchyard.cli.opened import opened_ledger
from patchyard.printable import printable
from patchyard.who import who


def command(job: Annotated[str, typer.Argument(metavar="JOB", help="BATCH/JOB, or a job's id.")]) -> None:
    """Verify an ended job's tree again in fresh sandboxes. The agent does not run; only sandbox time is spent.

    The job's end is written anew: state, reason, verdict and patch are those of this verification, and the trace keeps
    the former ones.

    Example: patchyard verify linkcheck-fixes/linkcheck-1
    """
    with opened_ledger() as db:
        found = find_job(db, job)
        name = f"{printable(found.batch_name)}/{printable(found.key)}"
        if not verify_again(db, found.id, by=who()):
            raise BadInput(f"{name} has not ended", remedy="it is verified when its agent says that it is done")
    print(f"{name}: to be verified again; follow it with `patchyard watch {printable(found.batch_name)}`")
