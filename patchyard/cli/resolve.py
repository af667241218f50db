"""`patchyard resolve`: a person says what became of an effect whose outcome nobody could find out."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ledger.afterwards import find_action, resolve_action
from patchyard.cli.console import print_json
from patchyard.cli.opened import opened_ledger
from patchyard.printable import printable
from patchyard.who import who


def command(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="An action's id, or the start of it.")],
    outcome: Annotated[
        Literal["done", "not-done"] | None, typer.Option("--as", help="What became of it: done or not-done.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the action as JSON.")] = False,
) -> None:
    """Show what was found of an uncertain effect; with --as, say what became of it, and its job goes on from there.

    Example: patchyard resolve 3f9a01c2 --as done
    """
    with opened_ledger() as db:
        found = find_action(db, action)
        if outcome is not None:
            resolve_action(db, found.action_id, done=outcome == "done", by=who())
            found = find_action(db, found.action_id)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    print(f"{found.action_id} {printable(found.tool)} of {printable(found.job)}: {found.state}")
    for title, value in (("asked", found.arguments), ("found", found.receipt or {})):
        for name, part in value.items():
            print(f"  {title} {printable(name)}: {printable(str(part), 500)}")
    if outcome is None and found.state == "uncertain":
        print("Nobody knows whether it is in place: look, then say --as done or --as not-done.")
