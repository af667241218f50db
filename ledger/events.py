"""The history of each job: append-only, numbered, and chained by hash so that a change shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from ledger.connect import Database
from ledger.records.base import Record
from ledger.records.step import Event
from ledger.steps import event_array

_PAGE = 1000


class EventRow(Record):
    """One event as the ledger has it; the hashes are hexadecimal SHA-256."""

    job_id: int
    seq: int
    at: datetime
    kind: str
    agent_id: int | None
    step_id: int | None
    body: dict[str, Any]
    prev_hash: str
    hash: str


class Leased(Protocol):
    """What says under which lease something is written: a claim, for one."""

    @property
    def step_id(self) -> int: ...

    @property
    def fence(self) -> int: ...


def append_events(db: Database, lease: Leased, events: Sequence[Event]) -> None:
    """Appends events under a lease. LeaseLost if it is gone."""
    db.run("append_events", step=lease.step_id, fence=lease.fence, told=event_array(events))


def read_events(db: Database, job_id: int, after_seq: int = 0) -> Iterator[EventRow]:
    """The events of a job in order, after the given number, read a page at a time."""
    while True:
        rows = db.run("read_events", job=job_id, after=after_seq, amount=_PAGE)
        yield from (EventRow.model_validate(row) for row in rows)
        if len(rows) < _PAGE:
            return
        after_seq = rows[-1]["seq"]


def broken_links(db: Database, job_id: int) -> list[int]:
    """Numbers of the events that do not fit the chain of hashes; empty when it is whole."""
    return [row["seq"] for row in db.run("broken_links", job=job_id)]
