"""`patchyard patch`: a job's verified patch, byte for byte, on stdout."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ledger.objects import get_object
from patchyard.cli.console import ExitStatus, leave, say
from patchyard.cli.opened import job_named, opened_ledger
from patchyard.cli.units import state_words, stated_reason
from patchyard.printable import printable


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="BATCH/JOB, or a job's id.")],
) -> None:
    """The verified patch of a job on stdout, for `git apply` on its base commit. Exits 1 if there is none.

    Example: patchyard patch linkcheck-fixes/linkcheck-1 | git -C linkcheck apply
    """
    with opened_ledger() as db:
        found = job_named(db, job)
        patch = get_object(db, found.patch_sha256) if found.patch_sha256 else None
    if patch is None:
        why = f"it is {state_words(found.state)}" + (f" ({stated_reason(found.reason)})" if found.reason else "")
        say(f"patchyard: {printable(found.batch_name)}/{printable(found.key)} has no verified patch: {why}")
        leave(ExitStatus.NOT_ALL_DONE)
    sys.stdout.buffer.write(patch)
    sys.stdout.buffer.flush()
