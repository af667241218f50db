"""`patchyard ps`: what of the local stack runs, as the kernel says and not as a file remembers."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ledger.errors import DiskFull
from patchyard.cli.console import print_json, print_table, say, table
from patchyard.local.view import ServiceView, view_services
from patchyard.room import lacking_here
from patchyard.settings import load_settings


def command(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """The processes of the local stack: state, pid, age, restarts, memory and log of each.

    Example: [bold]patchyard ps --json | jq '.[].state'[/bold]
    """
    settings = load_settings()
    views = view_services(settings)
    if as_json:
        print_json([view.plain() for view in views])
    elif not views:
        say("the local stack is not running; start it with `patchyard up`")
    else:
        columns = ("service", "state", "pid", "up", "restarts", "memory")
        print_table(table(*columns, rows=[_row(view) for view in views]))
        say(f"logs: {settings.home / 'logs'}")
    for line in lacking_here(settings):
        say(f"{DiskFull.code}: {line}; workers begin nothing until there is room")


def _row(view: ServiceView) -> tuple[str, ...]:
    return (
        view.service,
        view.state if view.state == "running" or not view.last_exit else f"{view.state} ({view.last_exit})",
        str(view.pid or ""),
        _age(time.time() - view.started_at) if view.started_at else "",
        str(view.restarts),
        f"{view.memory_bytes / 1e6:.0f} MB" if view.memory_bytes else "",
    )


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
