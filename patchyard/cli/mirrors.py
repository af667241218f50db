"""`patchyard mirrors`: what is kept of repositories on this machine, and how much of the disk it takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from patchyard.cli.console import print_json, print_table, say, table
from patchyard.cli.units import time_text
from patchyard.keeping import Kept, open_mirrors
from patchyard.settings import load_settings
from runners.disk import shown_bytes
from runners.eviction import Evicted, Item

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List and prune the mirrors of repositories.\n\nExample: patchyard mirrors prune --max-gb 2",
)
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """The mirrors and downloads on this machine, least recently used first.

    Example: patchyard mirrors list --json
    """
    items = sorted(open_mirrors(load_settings()).items(), key=lambda item: item.used_at)
    if as_json:
        print_json([_row(item) for item in items])
    else:
        rows = [(item.kind, item.name, shown_bytes(item.size_bytes), _when(item)) for item in items]
        print_table(table("kind", "name", "size", "last used", rows=rows))


@app.command("prune")
def prune_command(
    max_gb: Annotated[
        float | None,
        typer.Option("--max-gb", min=0, help="What mirrors may take; PATCHYARD_MIRRORS_MAX_GB by default."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Evict mirrors until they are within their quota, those first that were not used for the longest time.

    What a step uses stays; what went is fetched again when a job needs it. Workers do the same by themselves.

    Example: patchyard mirrors prune --max-gb 2
    """
    settings = load_settings()
    most_gb = settings.mirrors_max_gb if max_gb is None else max_gb
    done = Kept(settings, open_mirrors(settings)).tidy_mirrors(round(most_gb * 1e9))
    show_evicted(done, most_gb, as_json)


def show_evicted(done: Evicted, most_gb: float, as_json: bool) -> None:
    """What went, and what is left."""
    if as_json:
        removed = [_row(item) for item in done.removed]
        print_json({"removed": removed, "kept_bytes": done.kept_bytes, "enough": done.enough})
        return
    for item in done.removed:
        print(f"{item.kind} {item.name} {shown_bytes(item.size_bytes)}")
    say(f"{shown_bytes(done.freed_bytes)} freed; {shown_bytes(done.kept_bytes)} left of at most {most_gb:g} GB")
    if not done.enough:
        say("what is left is in use or could not be brought back, or the disk is full of other things")


def _row(item: Item) -> dict[str, Any]:
    return {"kind": item.kind, "name": item.name, "bytes": item.size_bytes, "used_at": item.used_at}


def _when(item: Item) -> str:
    return time_text(datetime.fromtimestamp(item.used_at, UTC)) if item.used_at else "unknown"
