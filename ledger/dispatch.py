"""What the scheduler does to the ledger: leads alone, admits jobs fairly, offers ready steps, takes expired leases."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg.rows import dict_row

from ledger.connect import CONNECT_SECONDS, Connection, Database, limit_of_silence, run, translated_errors
from ledger.errors import LedgerUnavailable
from ledger.records.step import Offer
from ledger.steps import MAX_ATTEMPTS

LEAD_SECONDS = 30.0


class Lead:
    """The right to schedule, as long as one database session lives: a session-level advisory lock.

    The server ends a session that says nothing for too long: a leader that was stopped, or whose host is gone, would
    else lead for as long as its connection stands, and nobody would be admitted or recovered.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def take(cls, db: Database, silence_seconds: float) -> Self | None:
        """The lead, or None while another session has it. LedgerUnavailable."""
        options = limit_of_silence(db.url, "idle_session_timeout", silence_seconds)
        with translated_errors():
            connection: Connection = psycopg.connect(
                db.url,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                row_factory=dict_row,
                application_name="patchyard-lead",
                tcp_user_timeout=30_000,
                options=options,
            )
        try:
            with translated_errors():
                leading = run(connection, "try_lead")[0]["leading"]
        except BaseException:
            connection.close()
            raise
        if not leading:
            connection.close()
            return None
        return cls(connection)

    def still(self) -> bool:
        """Whether the session that holds the lead is alive and holds it."""
        try:
            with translated_errors():
                return bool(run(self._connection, "still_leading")[0]["leading"])
        except LedgerUnavailable:
            return False

    def release(self) -> None:
        """Gives the lead away."""
        self._connection.close()


def try_lead(db: Database, *, silence_seconds: float = LEAD_SECONDS) -> Lead | None:
    """The lead, or None while another session has it. It is lost when `still` is not called for `silence_seconds`."""
    return Lead.take(db, silence_seconds)


@dataclass(frozen=True)
class OpenBatch:
    """A batch with jobs that wait: its weight, its cap, and how many of its jobs are active."""

    id: int
    weight: float
    max_parallel: int | None
    active: int


def fair_shares(batches: list[OpenBatch], places: int) -> dict[int, int]:
    """How many jobs of each batch to admit into `places`: always the batch with the least active jobs per weight.

    Pure; ties go to the older batch. A batch at its cap is passed over.
    """
    shares: dict[int, int] = {}
    heap = [((batch.active + 1) / batch.weight, batch.id, batch) for batch in batches]
    heapq.heapify(heap)
    while places > 0 and heap:
        _, _, batch = heapq.heappop(heap)
        active = batch.active + shares.get(batch.id, 0)
        if batch.max_parallel is not None and active >= batch.max_parallel:
            continue
        shares[batch.id] = shares.get(batch.id, 0) + 1
        places -= 1
        heapq.heappush(heap, ((active + 2) / batch.weight, batch.id, batch))
    return shares


def active_jobs(db: Database) -> int:
    """Jobs that were admitted and have not ended, without those of paused batches."""
    return int(db.run("count_active")[0]["active"])


def admit_jobs(db: Database, *, capacity: int) -> list[Offer]:
    """Admits waiting jobs until `capacity` jobs are active, and returns their first steps, marked as offered."""
    with db.transaction() as connection:
        run(connection, "close_batches")
        places = capacity - run(connection, "count_active")[0]["active"]
        if places <= 0:
            return []
        waiting = [OpenBatch(**row) for row in run(connection, "open_batches")]
        offers: list[Offer] = []
        for batch_id, amount in fair_shares(waiting, places).items():
            rows = run(connection, "admit", batch=batch_id, amount=amount)
            offers += [Offer(step_id=row["step_id"], queue=row["queue"]) for row in rows]
        return offers


def ready_offers(db: Database, *, limit: int, stale_seconds: float) -> list[Offer]:
    """Due steps that were never offered, or so long ago that the message may be lost; marked as offered now."""
    rows = db.run("offer_ready", amount=limit, stale=stale_seconds)
    return [Offer(step_id=row["step_id"], queue=row["queue"]) for row in rows]


@dataclass(frozen=True)
class Swept:
    """How many expired leases a sweep took."""

    expired: int


def sweep_leases(db: Database, *, limit: int = 500) -> Swept:
    """Takes leases that ran out: each step is ready again, or, out of attempts, has only its cleanup left."""
    expired = 0
    for row in db.run("expired_steps", amount=limit):
        taken = db.run("expire_step", step=row["id"], max_attempts=MAX_ATTEMPTS)
        expired += bool(taken[0]["expired"])
    return Swept(expired=expired)
