"""`patchyard images`: the sandbox images of this machine and their digests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from images.lock import LockedImage
from images.recipe import names, shipped_recipe
from ledger.errors import LedgerUnavailable, Unfit
from ledger.stored import live_images
from patchyard.backends import ImagesOnly, connect, has_engine
from patchyard.batchfile.lookups import FoundImage
from patchyard.cli.console import print_json, print_rows, say
from patchyard.cli.mirrors import show_evicted
from patchyard.cli.opened import opened_ledger
from patchyard.image_exchange import give_out, take_in
from patchyard.image_shelf import (
    bring_images,
    build_image,
    engine_at_hand,
    images_in,
    layout_of,
    locked_images,
)
from patchyard.keeping import Kept, open_mirrors
from patchyard.printable import printable
from patchyard.settings import Settings, load_settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Build, import, export, list and prune sandbox images.\n\nExample: patchyard images build sandbox-python",
)
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Recipes; all of them by default.")]


@app.command("build")
def build_command(wanted: Names = None) -> None:
    """Build images from this distribution's packages, and pin them for this machine. Two builds on a day are equal.

    Example: patchyard images build sandbox-python
    """
    settings = load_settings()
    _require_recipes(wanted or ())
    for name in wanted or names():
        say(f"building {printable(name)} from this distribution's packages")
        entry = build_image(settings, name)
        print(f"{name} {entry.digest}")
        _into_the_engine(settings, name, entry)


@app.command("lock")
def lock_command(
    wanted: Names = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="The lock file; images_lock by default.")] = None,
) -> None:
    """Build images and write their digests into the lock file that goes with the repository.

    Example: patchyard images lock sandbox-python --file images/lock.toml
    """
    settings = load_settings()
    target = file or settings.images_lock
    _require_recipes(wanted or ())
    for name in wanted or names():
        entry = build_image(settings, name, target)
        print(f"{name} {entry.digest}")
    say(f"wrote {target}")


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """The images that have a name here, and where they are.

    Example: patchyard images list --json
    """
    settings = load_settings()
    locked = locked_images(settings)
    host = engine_at_hand(settings)
    loaded = images_in(host, (entry.digest for entry in locked.values())) if host else set()
    rows = [_row(settings, name, entry, entry.digest in loaded if host else None) for name, entry in locked.items()]
    if as_json:
        print_json(rows)
    elif not rows:
        say(f"no image has a name here; build one of {', '.join(names())} with `patchyard images build`")
    else:
        columns = ("image", "digest", "for", "built", "here", "engine")
        print_rows(*columns, rows=map(_cells, rows), flexible=("image", "digest"), spare=("built", "for"))


@app.command("import")
def import_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="An OCI layout (folder or tar), what `docker save` wrote, HOST/NAME@sha256:…, or docker:NAME.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="What it is called here; made of SOURCE by default.")
    ] = None,
) -> None:
    """Take an image in: from files, from a registry by its digest, or from a Docker engine. It is pinned by its digest,
    which is the same for every backend.

    Example: patchyard images import ./python-layout.tar --name my-python
    """
    settings = load_settings()
    called, entry = take_in(settings, source, name)
    print(f"{called} {entry.digest}")
    _into_the_engine(settings, called, entry)


@app.command("export")
def export_command(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="A name of the images lock, or a digest.")],
    target: Annotated[Path, typer.Argument(metavar="PATH", help="The new folder, or a file that ends in .tar.")],
) -> None:
    """Write an image that was built or imported here as an OCI layout, which other tools take too.

    Example: patchyard images export sandbox-python sandbox-python.tar
    """
    digest = give_out(load_settings(), image, target)
    say(f"wrote {target}")
    print(digest)


@app.command("prune")
def prune_command(
    max_gb: Annotated[
        float | None, typer.Option("--max-gb", min=0, help="What images may take; PATCHYARD_IMAGES_MAX_GB by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what went as JSON.")] = False,
) -> None:
    """Evict images until they are within their quota, those first that were not used for the longest time.

    What is in use stays, and so does what could not be brought back and has a name or a job that waits for it. Workers
    do the same by themselves.

    Example: patchyard images prune --max-gb 5
    """
    settings = load_settings()
    most_gb = settings.images_max_gb if max_gb is None else max_gb
    host = engine_at_hand(settings)
    backend = connect(host, ImagesOnly()) if host and has_engine(host) else None
    try:
        done = Kept(settings, open_mirrors(settings), backend).tidy_images(_live_images(settings), round(most_gb * 1e9))
    finally:
        if backend is not None:
            backend.close()
    show_evicted(done, most_gb, as_json)


def _require_recipes(wanted: Iterable[str]) -> None:
    """Raises BadInput for an image that there is no recipe of, before any other is built."""
    for name in wanted:
        shipped_recipe(name)


def _live_images(settings: Settings) -> set[str] | None:
    """The images of jobs that have not ended; None where no ledger can tell."""
    try:
        with opened_ledger(settings) as db:
            return live_images(db)
    except (Unfit, LedgerUnavailable):
        return None


def _row(settings: Settings, name: str, entry: LockedImage, loaded: bool | None) -> dict[str, Any]:
    return {
        "name": name,
        "digest": entry.digest,
        "config": entry.config,
        "distribution": entry.distribution,
        "architecture": entry.architecture,
        "built": entry.built.isoformat(),
        "packages": entry.packages,
        "built_here": layout_of(settings, entry.digest) is not None,
        "in_engine": loaded,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    loaded = {True: "yes", False: "no", None: "no engine"}[row["in_engine"]]
    where = f"{row['distribution']}/{row['architecture']}"
    return (row["name"], row["digest"], where, row["built"], "yes" if row["built_here"] else "no", loaded)


def _into_the_engine(settings: Settings, name: str, entry: LockedImage) -> None:
    host = engine_at_hand(settings)
    if host is None:
        say("no container engine answers now; `patchyard run` loads the image when the stack is up")
        return
    bring_images(settings, host, [FoundImage(entry.digest, name)], say)
