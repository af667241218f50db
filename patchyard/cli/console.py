"""What the command line prints and how it ends: tables for people, JSON for machines, one line for what went wrong.

Results go to stdout and everything else to stderr, so that a pipe gets results only. A command raises; the exit status
follows from the error's class, in one place.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

from ledger.errors import BadInput, DiskFull, LedgerUnavailable, PatchyardError, Unfit
from patchyard.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_IN_ASCII = {"…": "...", "→": "->"}
_GAP = 2
_READABLE = 36
"""So many characters of a column that may be wrapped are read well."""


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
    write_data(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_data(text: str) -> None:
    """Text for machines on stdout: in UTF-8, whatever a terminal may know."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def show_what_can_be_shown() -> None:
    """From now on stdout and stderr replace what their encoding has not, where they would raise an error."""
    codecs.register_error("patchyard", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="patchyard")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(char) or ascii(char)[1:-1] for char in lost), error.end


def table(*columns: str, rows: Iterable[Iterable[str]] = (), flexible: Collection[str] | None = None) -> Table:
    """A plain table; a cell may be any text, also one that looks like markup.

    Where it is too wide, the columns of `flexible` (all, if None) are wrapped; the others are wrapped last.
    """
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=flexible is not None and column not in flexible, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, overflow="fold") for cell in row))
    return made


def print_rows(
    *columns: str, rows: Iterable[Sequence[str]], flexible: Collection[str], spare: Sequence[str] = ()
) -> None:
    """A table on stdout. On a terminal that is too narrow for it, columns of `spare` are left out, the first one first,
    as long as a column of `flexible` has less room than it wants and than can be read well."""
    cells = list(rows)
    shown, width = list(columns), output().width
    if sys.stdout.isatty():
        for name in spare:
            if _fits(shown, columns, cells, flexible, width):
                break
            shown.remove(name)
    wanted = [columns.index(name) for name in shown]
    print_table(table(*shown, rows=([row[index] for index in wanted] for row in cells), flexible=flexible))
    if left_out := [name for name in columns if name not in shown]:
        say(f"{width} columns are too few for {', '.join(left_out)}; --json has all")


def _fits(
    shown: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[str]], flexible: Collection[str], width: int
) -> bool:
    from rich.cells import cell_len

    needed = _GAP * (len(shown) - 1)
    for name in shown:
        index = columns.index(name)
        wants = max((cell_len(text) for text in (name, *(row[index] for row in rows))), default=0)
        needed += min(wants, _READABLE) if name in flexible else wants
    return needed <= width


def print_line(text: str, *, label: str = "") -> None:
    """One line of results on stdout. A terminal that is narrower gets several, broken between words, below `text`."""
    if not sys.stdout.isatty():
        print(label + text)
        return
    from rich.text import Text

    console = output()
    for line in Text(text, overflow="fold").wrap(console, max(console.width - len(label), 1)):
        print((label + line.plain).rstrip())
        label = " " * len(label)


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
