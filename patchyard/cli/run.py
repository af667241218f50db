"""`patchyard run`: the main job in one command: stack up if needed, submit, watch, results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ledger.connect import Database
from patchyard.backends import require_backend
from patchyard.batchfile import read_batch
from patchyard.cli.console import ExitStatus, leave, say
from patchyard.cli.opened import batch_named
from patchyard.cli.results import ResultFormat, print_results, require_writable, write_results
from patchyard.cli.submit import File, Name, Sets, each_mistake_on_its_line, show_submitted
from patchyard.cli.watch import watch_batch
from patchyard.image_shelf import bring_images, build_missing, require_images
from patchyard.local.stack import ensure_up, stop
from patchyard.room import require_local_room
from patchyard.settings import Settings, load_settings
from patchyard.submit import prepare_file, submit_prepared


def command(
    file: File,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write results.jsonl and patches/JOB.patch into this folder.")
    ] = None,
    name: Name = None,
    sets: Sets = None,
    build_images: Annotated[
        bool, typer.Option("--build-images", help="Build the images that the batch names and this machine has not.")
    ] = False,
    down: Annotated[
        bool, typer.Option("--down", help="Stop the local stack at the end if this command started it.")
    ] = False,
) -> None:
    """Start the local stack if it does not run, submit a batch, watch it to its end, and show the results.

    The stack stays up, so that `show`, `trace` and `patch` can follow; `patchyard down` stops it.

    Exits 0 if all jobs completed, 1 if some did not, 130 on Ctrl-C, after which the jobs go on.

    Example: patchyard run batch.yaml --out results
    """
    if out is not None:
        require_writable(out, ResultFormat.JSONL)
    settings = load_settings()
    require_backend(settings)
    require_local_room(settings)
    if build_images:
        with each_mistake_on_its_line():
            build_missing(settings, read_batch(file, name=name, sets=sets or ()).image_names(), say)
    with each_mistake_on_its_line(), prepare_file(settings, file, name=name, sets=sets or ()) as prepared:
        require_images(settings, prepared.images)
        running = ensure_up(settings, say=say)
        try:
            if running.engine is not None:
                bring_images(settings, running.engine, prepared.images, say)
            with Database(running.database_url, name="patchyard cli", pool_max=3) as db:
                submitted = submit_prepared(db, prepared)
                show_submitted(submitted, as_json=False)
                status = _to_the_end(db, submitted.name, out)
        except BaseException:
            _down_if_asked(settings, down and running.started_by_us)
            raise
    if status is not ExitStatus.INTERRUPTED:
        _down_if_asked(settings, down and running.started_by_us)
    leave(status)


def _to_the_end(db: Database, name: str, out: Path | None) -> ExitStatus:
    batch = batch_named(db, name)
    status = watch_batch(db, batch)
    if status is not ExitStatus.INTERRUPTED:
        print_results(db, batch, ResultFormat.TABLE)
        if out is not None:
            write_results(db, batch, out, ResultFormat.JSONL)
    return status


def _down_if_asked(settings: Settings, asked: bool) -> None:
    if asked:
        left = stop(settings, say=say)
        for process in left.processes:
            say(f"patchyard: left running: {process.service} (pid {process.pid})")
