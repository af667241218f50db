"""Submission: a batch file in, a batch in the ledger out, or nothing at all.

First everything is read, looked up and checked, with no connection to the ledger; then one transaction writes it. The
same file under the same name is the same batch, so that a submission whose answer got lost is simply repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ledger.batches import submission
from ledger.connect import Database
from ledger.records.job import JobSpec
from patchyard.batchfile import Prepared, prepare, read_batch
from patchyard.batchfile.finder import MachineFinder
from patchyard.room import floor_of
from patchyard.settings import Settings


@dataclass(frozen=True)
class SubmittedBatch:
    """A batch in the ledger; `created` is false if it was there already. `remarks` are about its repositories."""

    batch_id: int
    name: str
    created: bool
    jobs: int
    remarks: tuple[str, ...] = ()


def prepare_file(settings: Settings, path: Path, *, name: str | None = None, sets: Sequence[str] = ()) -> Prepared:
    """Reads and checks a batch file without touching the ledger. Raises BadInput, BadBatch for several mistakes."""
    finder = MachineFinder(settings.home, settings.images_lock, floor_of(settings))
    return prepare(read_batch(path, name=name, sets=sets), finder, settings.network)


def submit_prepared(db: Database, prepared: Prepared) -> SubmittedBatch:
    """Writes a checked batch in one transaction. Raises BadInput if its name stands for other jobs already."""
    with submission(db) as opened:
        for item in prepared.spool.items():
            if isinstance(item, JobSpec):
                opened.add(item)
            else:
                opened.put_object(item.kind, item.data)
        opened.finish(prepared.spec)
    result = opened.result
    assert result is not None  # noqa: S101  (finish has set it, or raised)
    return SubmittedBatch(result.batch_id, prepared.spec.name, result.created, result.jobs, prepared.remarks)


def submit(
    settings: Settings, db: Database, path: Path, *, name: str | None = None, sets: Sequence[str] = ()
) -> SubmittedBatch:
    """Checks a batch file and submits it. See prepare_file and submit_prepared for the errors."""
    with prepare_file(settings, path, name=name, sets=sets) as prepared:
        return submit_prepared(db, prepared)
