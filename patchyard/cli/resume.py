"""`patchyard resume`: lets a paused batch go on."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.batches import resume_batch
from ledger.errors import BadInput
from patchyard.cli.console import print_json
from patchyard.cli.opened import batch_named, opened_ledger
from patchyard.printable import printable


def command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's name or id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Let a paused batch go on from where it stood. The time of its pause counts for none of its jobs.

    Example: patchyard resume linkcheck-fixes
    """
    with opened_ledger() as db:
        found = batch_named(db, batch)
        name = printable(found.name)
        if resume_batch(db, found.id) == "before":
            raise BadInput(f"{name} is not paused", remedy="there is nothing to resume")
    if as_json:
        print_json({"batch": found.name, "paused": False})
    else:
        print(f"{name} goes on; follow with `patchyard watch {name}`")
