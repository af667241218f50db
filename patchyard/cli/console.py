"""What the command line prints and how it ends: tables for people, JSON for machines, one line for what went wrong.

Results go to stdout and everything else to stderr, so that a pipe gets results only. A command raises; the exit status
follows from the error's class, in one place.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

from ledger.errors import BadInput, DiskFull, LedgerUnavailable, PatchyardError, Unfit
from patchyard.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class ExitStatus(IntEnum):
    """The statuses that scripts may rely on."""

    DONE = 0
    NOT_ALL_DONE = 1
    BAD_INPUT = 2
    UNFIT = 3
    INTERRUPTED = 130


def output() -> Console:
    """The console of results, on stdout. Text is taken as it is: a job's name is no markup."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def say(line: str) -> None:
    """One line for people, on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(*columns: str, rows: Iterable[Iterable[str]] = (), title: str | None = None) -> Table:
    """A plain table; a cell may be any text, also one that looks like markup."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    made = Table(*columns, box=SIMPLE, title=title, title_justify="left", pad_edge=False, show_edge=False)
    for row in rows:
        made.add_row(*(Text(cell, overflow="fold") for cell in row))
    return made


def print_table(made: Table) -> None:
    """A table on stdout; where that is no terminal, as wide as it needs to be."""
    console = output()
    if not console.is_terminal:
        unbounded = console.options.update(max_width=100_000)
        console.width = max(console.measure(made, options=unbounded).maximum, 40)
    console.print(made)


def leave(status: ExitStatus) -> NoReturn:
    """End the command with `status`."""
    import typer

    raise typer.Exit(int(status))


def status_of(error: PatchyardError) -> ExitStatus:
    """The exit status of an error that ended a command."""
    if isinstance(error, BadInput):
        return ExitStatus.BAD_INPUT
    if isinstance(error, Unfit | LedgerUnavailable | DiskFull):
        return ExitStatus.UNFIT
    return ExitStatus.NOT_ALL_DONE


def report(error: PatchyardError) -> ExitStatus:
    """Print `error` as one line, and return its status. With PATCHYARD_DEBUG=1 its traceback comes first."""
    if os.environ.get("PATCHYARD_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    say("patchyard: " + printable(" ".join(error.message.split())))
    return status_of(error)
