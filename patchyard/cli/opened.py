"""The ledger that the settings mean, opened for a command.

A command that looks, submits or cancels needs the database and nothing else: the stack may be somebody else's, and
where it is ours and does not run, the command says how to start it instead of waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.connect import Database
from ledger.errors import LedgerUnavailable, Unfit
from ledger.reads import BatchRow, JobRow, find_batch, find_job
from patchyard.local.home import Home
from patchyard.local.processes import stack_processes
from patchyard.local.servers import POSTGRES, database_url, read_state
from patchyard.printable import printable
from patchyard.settings import Settings, load_settings, masked_url

_POOL_MAX = 3


def url_of_ledger(settings: Settings) -> str:
    """The URL of the settings' database, or of the local stack's. Unfit if neither is there."""
    if settings.database_url is not None:
        return settings.database_url
    home = Home(settings.home.resolve())
    state = read_state(home)
    if state is None or not any(found.service == POSTGRES for found in stack_processes(home.path)):
        raise Unfit(f"no stack runs in {settings.home}", remedy="start it with `patchyard up`")
    return database_url(state)


@contextmanager
def opened_ledger(settings: Settings | None = None) -> Iterator[Database]:
    """The ledger, for the length of a command. LedgerUnavailable says which, and what to do."""
    settings = settings or load_settings()
    url = url_of_ledger(settings)
    try:
        with Database(url, name="patchyard cli", pool_max=_POOL_MAX) as db:
            yield db
    except LedgerUnavailable as error:
        own = settings.database_url is not None
        remedy = "start it, or correct PATCHYARD_DATABASE_URL" if own else "`patchyard up` starts what is missing"
        raise LedgerUnavailable(f"{masked_url(url)}: {error.message}; {remedy}") from error


def batch_named(db: Database, ref: str) -> BatchRow:
    """The batch of that name or id. BadInput, which repeats nothing that a terminal obeys, if there is none."""
    return find_batch(db, printable(ref))


def job_named(db: Database, ref: str) -> JobRow:
    """The job BATCH/JOB, or of that id. BadInput as in batch_named."""
    return find_job(db, printable(ref))
