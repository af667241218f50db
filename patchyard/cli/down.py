"""`patchyard down`: nothing of the local stack runs when this returns 0."""

from __future__ import annotations

from typing import Annotated

import typer

from patchyard.cli.console import ExitStatus, leave, print_json, say
from patchyard.local.deletion import delete_home
from patchyard.local.stack import stop
from patchyard.settings import load_settings


def command(
    delete_data: Annotated[
        bool,
        typer.Option("--delete-data", help="Delete PATCHYARD_HOME too: the database, mirrors, images and logs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is left as JSON.")] = False,
) -> None:
    """Stop everything that `up` started, workers first, and look for what is left of it.

    The data stay under PATCHYARD_HOME: the next `up` goes on with them. With --delete-data they are deleted, unless
    something could not be stopped. Exits 1 if something could not be stopped.

    Example: [bold]patchyard down[/bold]
    """
    settings = load_settings()
    left = stop(settings, say=say)
    if as_json:
        processes = [{"pid": process.pid, "service": process.service} for process in left.processes]
        print_json({"left": {"processes": processes, "other": list(left.other)}})
    else:
        for process in left.processes:
            print(f"left: pid {process.pid} ({process.service}): {process.command[:100]}")
        for other in left.other:
            print(f"left: {other}")
        if not left:
            print("nothing is left running")
    if left:
        leave(ExitStatus.NOT_ALL_DONE)
    if delete_data and settings.home.exists():
        for place in delete_home(settings, say):
            say(f"{place} stays: a link below {settings.home} led to it")
        say(f"deleted {settings.home}")
