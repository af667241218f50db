"""`patchyard submit`: a batch file into the ledger, in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from patchyard.batchfile import BadBatch
from patchyard.cli.console import ExitStatus, leave, print_json, say
from patchyard.cli.opened import batch_named, opened_ledger
from patchyard.cli.units import counted
from patchyard.cli.watch import watch_batch
from patchyard.image_shelf import bring_images, engine_of_stack
from patchyard.printable import printable
from patchyard.settings import load_settings
from patchyard.submit import SubmittedBatch, prepare_file, submit_prepared

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A batch file: YAML, TOML, JSON or JSON lines; SWE-bench's too.")
]
Name = Annotated[str | None, typer.Option("--name", help="The batch's name, instead of the file's.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a default, as defaults.budget.steps=10; repeatable."),
]


def command(
    file: File,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the batch until it ends.")] = False,
    name: Name = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the batch as JSON.")] = False,
) -> None:
    """Check a batch file, all of it, and submit it. The same file under the same name is the same batch.

    Example: patchyard submit batch.yaml --set defaults.budget.steps=20 --watch
    """
    settings = load_settings()
    with (
        each_mistake_on_its_line(),
        prepare_file(settings, file, name=name, sets=sets or ()) as prepared,
        opened_ledger(settings) as db,
    ):
        if (engine := engine_of_stack(settings)) is not None:
            bring_images(settings, engine, prepared.images, say)
        submitted = submit_prepared(db, prepared)
        show_submitted(submitted, as_json)
        status = watch_batch(db, batch_named(db, submitted.name), as_json=as_json) if watch else ExitStatus.DONE
    leave(status)


@contextmanager
def each_mistake_on_its_line() -> Iterator[None]:
    """Several mistakes in a batch file are several lines."""
    try:
        yield
    except BadBatch as mistakes:
        for line in mistakes.message.splitlines():
            say(f"patchyard: {printable(line)}")
        leave(ExitStatus.BAD_INPUT)


def show_submitted(submitted: SubmittedBatch, as_json: bool) -> None:
    """What was submitted, and what is remarkable about its repositories."""
    for remark in submitted.remarks:
        say(f"note: {printable(remark)}")
    if as_json:
        print_json(asdict(submitted))
        return
    what = "submitted" if submitted.created else "was submitted before and is the same"
    print(f"batch {printable(submitted.name)} {what}: id {submitted.batch_id}, {counted(submitted.jobs, 'job')}")
