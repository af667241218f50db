"""What a statement reads does not depend on how much history the ledger has.

Rows are counted by the server itself, for everything that a call does, functions and triggers included: a plan that
went over a table, or over all of an index, shows as rows in the order of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import psycopg
import pytest
from psycopg import sql

from bench.ledger_history import fill_history
from ledger.afterwards import audit_job, find_action, job_actions
from ledger.batches import request_cancel, submit_batch
from ledger.connect import Database
from ledger.dispatch import active_jobs, admit_jobs, ready_offers, sweep_leases
from ledger.errors import BadInput
from ledger.events import broken_links, read_events
from ledger.migrate import migrate
from ledger.reads import (
    batch_account,
    batch_progress,
    find_batch,
    find_job,
    job_agents,
    job_sandboxes,
    job_steps,
    list_batches,
    list_jobs,
    unfinished,
)
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec
from ledger.records.step import Claim, Completion, NextStep
from ledger.sandboxes import live_sandboxes
from ledger.steps import claim_step, complete_step, forfeit_leases, give_back, lease_owners, renew_leases
from tests.fixtures.database import database_url
from tests.ledger.conftest import job_spec, nothing

pytestmark = pytest.mark.slow

HISTORY_STEPS = 200_000
JOBS = 20
"""Of the batch that is worked on."""
MOST_ROWS = 1_000
"""A finished history of this size has 20,000 jobs, 200,000 steps and 460,000 events: any scan of one is far above."""
_NAME = "patchyard_with_a_past"


class Read(NamedTuple):
    """What was read of the ledger's tables."""

    by_scan: int
    by_index: int


@pytest.fixture(scope="module")
def long_ledger(postgres_url: str) -> Iterator[str]:
    """The URL of a ledger with a long history."""
    url = database_url(postgres_url, _NAME)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_NAME)))
        migrate(url)
        fill_history(url, HISTORY_STEPS)
        yield url
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(_NAME)))


@pytest.fixture(scope="module")
def ledger(long_ledger: str) -> Iterator[Database]:
    """It, reached by one connection, whose counters are the ones that are looked at."""
    with Database(long_ledger, name="plans", pool_max=1) as opened:
        submit_batch(opened, BatchSpec(name="now"), [job_spec(f"job-{number}") for number in range(JOBS)])
        yield opened


def _counters(db: Database) -> Read:
    with db.transaction() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
    with db.transaction() as connection:
        row = connection.execute(
            "SELECT sum(seq_tup_read) AS scanned, sum(coalesce(idx_tup_fetch, 0)) AS fetched"
            " FROM pg_stat_user_tables WHERE schemaname = 'ledger'"
        ).fetchone()
    assert row is not None
    return Read(int(row["scanned"]), int(row["fetched"]))


def read_by(db: Database, call: Callable[[], object]) -> int:
    """The rows of the ledger's tables that a call reads, whichever way."""
    before = _counters(db)
    call()
    after = _counters(db)
    return after.by_scan - before.by_scan + after.by_index - before.by_index


@pytest.fixture(scope="module")
def claims(ledger: Database) -> list[Claim]:
    """The first steps of some jobs, claimed."""
    offers = admit_jobs(ledger, capacity=JOBS // 2)
    taken = [claim_step(ledger, offer.step_id, owner="w1", lease_seconds=60, estimate=nothing) for offer in offers]
    return [claim for claim in taken if claim is not None]


def test_a_scan_of_a_table_would_be_seen(ledger: Database) -> None:
    def scan() -> None:
        with ledger.transaction() as connection:
            connection.execute("SELECT count(*) FROM ledger.steps WHERE result IS NOT NULL AND input ->> 'on' = 'x'")

    assert read_by(ledger, scan) >= HISTORY_STEPS


def test_a_step_reads_as_much_as_it_needs(ledger: Database, claims: list[Claim]) -> None:
    first, second, third = claims[:3]
    more = Completion(result={}, next=NextStep(kind="decide"), spent=Amounts(steps=1))
    end = Completion(result={}, end="verified", spent=Amounts(steps=1))
    calls: dict[str, Callable[[], object]] = {
        "admit": lambda: admit_jobs(ledger, capacity=JOBS // 2 + 1),
        "renew": lambda: renew_leases(ledger, [(claim.step_id, claim.fence) for claim in claims], 60),
        "complete": lambda: complete_step(ledger, first, more),
        "end": lambda: complete_step(ledger, second, end),
        "give back": lambda: give_back(ledger, third, why="tried", delay_seconds=0),
        "claim": lambda: claim_step(ledger, third.step_id, owner="w2", lease_seconds=60, estimate=nothing),
        "owners": lambda: lease_owners(ledger, "w"),
        "forfeit": lambda: forfeit_leases(ledger, "w2"),
        "offer": lambda: ready_offers(ledger, limit=100, stale_seconds=60),
        "sweep": lambda: sweep_leases(ledger),
        "active": lambda: active_jobs(ledger),
        "sandboxes": lambda: live_sandboxes(ledger),
    }
    assert {name: rows for name, call in calls.items() if (rows := read_by(ledger, call)) > MOST_ROWS} == {}


def test_what_people_ask_for_reads_as_much_as_it_shows(ledger: Database, claims: list[Claim]) -> None:
    batch, job = find_batch(ledger, "now"), claims[0].job_id
    old = find_job(ledger, "past-2/job-1500")

    def nobody() -> None:
        with pytest.raises(BadInput):
            find_action(ledger, "0123456789ab0123456789ab")

    calls: dict[str, Callable[[], object]] = {
        "batch": lambda: find_batch(ledger, "now"),
        "batches": lambda: list_batches(ledger),
        "progress": lambda: batch_progress(ledger, batch.id),
        "account": lambda: batch_account(ledger, batch.id),
        "unfinished": lambda: unfinished(ledger, batch.id),
        "job": lambda: find_job(ledger, "now/job-3"),
        "jobs": lambda: list_jobs(ledger, batch.id),
        "steps": lambda: job_steps(ledger, old.id),
        "agents": lambda: job_agents(ledger, old.id),
        "sandboxes": lambda: job_sandboxes(ledger, old.id),
        "events": lambda: list(read_events(ledger, old.id)),
        "chain": lambda: broken_links(ledger, job),
        "audit": lambda: audit_job(ledger, old.id),
        "actions": lambda: job_actions(ledger, old.id),
        "action": nobody,
        "cancel": lambda: request_cancel(ledger, by="test", job_id=job),
    }
    assert {name: rows for name, call in calls.items() if (rows := read_by(ledger, call)) > MOST_ROWS} == {}
