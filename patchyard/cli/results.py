"""`patchyard results`: what became of a batch, for people, scripts, benchmarks and CI."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ledger.connect import Database
from ledger.errors import BadInput
from ledger.reads import BatchRow, ResultRow, batch_progress
from patchyard.cli.console import ExitStatus, leave, print_line, print_rows, say, write_data
from patchyard.cli.opened import batch_named, opened_ledger
from patchyard.cli.units import (
    finished_of,
    reason_words,
    span_text,
    spend_text,
    state_words,
    states_line,
    usd_text,
)
from patchyard.printable import printable
from patchyard.results import json_lines, junit, not_predictable, patch_of, prediction, public_row, result_rows

_WRITABLE = "give a folder that can be written"
_COUNTS = ("passed", "failed", "skipped")
_FILES = {"jsonl": "results.jsonl", "predictions": "predictions.jsonl", "junit": "junit.xml", "table": "results.jsonl"}


class ResultFormat(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSONL = "jsonl"
    PREDICTIONS = "predictions"
    JUNIT = "junit"


def command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's name or id.")],
    form: Annotated[
        ResultFormat, typer.Option("--format", help="predictions is the form that SWE-bench evaluates.")
    ] = ResultFormat.TABLE,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the results and patches/JOB.patch into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """The results of a batch. Exits 0 if all jobs completed, else 1.

    Example: patchyard results linkcheck-fixes --format jsonl --out results
    """
    if as_json and form not in (ResultFormat.TABLE, ResultFormat.JSONL):
        raise BadInput(f"is the same as --format jsonl, not {form.value}", where="--json", remedy="give one of the two")
    chosen = ResultFormat.JSONL if as_json else form
    if out is not None:
        require_writable(out, chosen)
    with opened_ledger() as db:
        found = batch_named(db, batch)
        if out is not None:
            write_results(db, found, out, chosen)
        if out is None or chosen is ResultFormat.TABLE:
            print_results(db, found, chosen)
        completed = batch_progress(db, found.id).states.get("completed", 0)
    leave(ExitStatus.DONE if completed == found.jobs else ExitStatus.NOT_ALL_DONE)


def require_writable(folder: Path, form: ResultFormat) -> None:
    """Raises BadInput if results could not be written into `folder`. What is made to find out is gone afterwards."""
    for path in (*reversed(folder.parents), folder, folder / "patches"):
        if path.exists() and not path.is_dir():
            raise BadInput("is no folder", where=f"--out {path}", remedy=_WRITABLE)
    if (folder / _FILES[form]).is_dir():
        raise BadInput("is a folder", where=f"--out {folder / _FILES[form]}", remedy=_WRITABLE)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unwritable(error, folder) from None
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _unwritable(error: OSError, folder: Path) -> BadInput:
    reason = (error.strerror or "cannot be written").lower()
    return BadInput(reason, where=f"--out {error.filename or folder}", remedy=_WRITABLE)


def print_results(db: Database, batch: BatchRow, form: ResultFormat) -> None:
    """The results on stdout."""
    if form is ResultFormat.TABLE:
        _print_results_table(db, batch)
        return
    for text in _texts(db, batch, form):
        write_data(text)


def write_results(db: Database, batch: BatchRow, folder: Path, form: ResultFormat) -> None:
    """The results and the patches as files of `folder`, which is made; each file is there whole or not at all.

    A table is for eyes: files are then JSON lines. Raises BadInput where the folder cannot be written.
    """
    try:
        (folder / "patches").mkdir(parents=True, exist_ok=True)
        _write(folder / _FILES[form], (text.encode("utf-8", "surrogateescape") for text in _texts(db, batch, form)))
        for row in result_rows(db, batch):
            patch = patch_of(db, row)
            file = folder / "patches" / f"{row.job}.patch"
            if patch is None:
                file.unlink(missing_ok=True)
            else:
                _write(file, [patch])
    except OSError as error:
        raise _unwritable(error, folder) from None
    say(f"wrote {folder / _FILES[form]} and {folder / 'patches'}")


def _texts(db: Database, batch: BatchRow, form: ResultFormat) -> Iterator[str]:
    rows = result_rows(db, batch)
    if form is ResultFormat.JUNIT:
        counts = {str(state): number for state, number in batch_progress(db, batch.id).states.items()}
        return junit(batch.name, counts, rows)

    def line(row: ResultRow) -> Any:
        patch = patch_of(db, row)
        if form is not ResultFormat.PREDICTIONS:
            return public_row(row, patch)
        if why := not_predictable(patch):
            name = f"{printable(row.batch)}/{printable(row.job)}"
            say(f"patchyard: {name} is an empty prediction: {why}; `patchyard patch {name}` has it byte for byte")
        return prediction(row, patch)

    return json_lines(rows, line)


def _write(file: Path, parts: Iterable[bytes]) -> None:
    """All of `parts`, in place of whatever the file was before, once they are all there."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as opened:
            for part in parts:
                opened.write(part)
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _print_results_table(db: Database, batch: BatchRow) -> None:
    columns = ("job", "outcome", "tests", "fixed", "kept", "files", "steps", "cost", "time")
    spare = ("files", "steps", "cost", "time")
    print_rows(*columns, rows=map(_cells, result_rows(db, batch)), flexible=("job",), spare=spare)
    for row in result_rows(db, batch):
        if row.published and row.published.get("to") != "patch":
            places = [str(place) for place in (row.published.get("ref"), row.published.get("url")) if place]
            print_line(f"published {printable(row.job)}: {printable(' '.join(places))}")
    progress = batch_progress(db, batch.id)
    times = span_text(progress.first_started, progress.last_finished)
    print_line("tests: passed/failed/skipped; fixed, kept: passed/all")
    print_line(
        f"{printable(batch.name)}: {finished_of(progress.states)}/{progress.total} ended"
        f" ({states_line(progress.states)}), {spend_text(progress.spent)}" + (f", {times} in all" if times else "")
    )


def _cells(row: ResultRow) -> tuple[str, ...]:
    public = public_row(row, None)
    tests, acceptance = public["tests"], public["acceptance"]
    return (
        printable(row.job),
        reason_words(row.reason, row.spent, row.granted) or state_words(row.state),
        "" if tests["discovered"] is None else "/".join(str(tests[name] or 0) for name in _COUNTS),
        _of(acceptance["fail_to_pass"]),
        _of(acceptance["pass_to_pass"]),
        "" if row.files_changed is None else str(row.files_changed),
        str(row.spent.steps),
        usd_text(row.spent.cost_microusd),
        span_text(row.started_at, row.finished_at),
    )


def _of(counts: dict[str, int | None]) -> str:
    passed, failed = counts["passed"], counts["failed"]
    return "" if passed is None or failed is None else f"{passed}/{passed + failed}"
