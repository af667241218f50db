"""`patchyard pause`: lets no step of a batch begin until it is resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.batches import pause_batch
from ledger.errors import BadInput
from ledger.reads import batch_progress
from patchyard.cli.console import print_json
from patchyard.cli.opened import batch_named, opened_ledger
from patchyard.cli.units import counted
from patchyard.printable import printable
from patchyard.who import who


def command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's name or id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what is still at work as JSON.")] = False,
) -> None:
    """Begin no more steps of a batch. What runs goes on to the end of its step, and the clocks of its jobs stand still.

    Example: patchyard pause linkcheck-fixes
    """
    with opened_ledger() as db:
        found = batch_named(db, batch)
        name = printable(found.name)
        outcome = pause_batch(db, found.id, by=who())
        if outcome == "finished":
            raise BadInput(f"{name} has ended", remedy="there is nothing to pause")
        running = batch_progress(db, found.id).running_agents
    if as_json:
        print_json({"batch": found.name, "paused": True, "before": outcome == "before", "running_agents": running})
        return
    was = "was paused already" if outcome == "before" else "is paused"
    print(f"{name} {was}, {counted(running, 'agent')} still at work; `patchyard resume {name}` lets it go on")
