"""A lease is kept as long as its work goes on, and work under a lease that is gone is told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from ledger.batches import request_cancel, submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs, sweep_leases
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec, JobSpec
from ledger.records.source import SourceRef
from ledger.records.step import Claim
from ledger.steps import claim_step
from patchyard.lease_keeper import LeaseKeeper
from tests.fixtures.clock import move_clock
from tests.integration.worker.yard import until

LEASE_SECONDS = 0.9


@pytest.fixture
def claim(database: Database) -> Claim:
    """The claim of a job's first step, whose lease has just begun."""
    job = JobSpec(
        key="job",
        source=SourceRef(kind="git", location="/nowhere"),
        base_commit="1" * 40,
        base_tree="2" * 40,
        issue="",
        image="sha256:" + "a" * 64,
        image_name="sandbox-python",
        model="replay:x",
    )
    submit_batch(database, BatchSpec(name="batch"), [job])
    [offer] = admit_jobs(database, capacity=1)
    claimed = claim_step(
        database, offer.step_id, owner="me", lease_seconds=LEASE_SECONDS, estimate=lambda _claim: Amounts()
    )
    assert claimed is not None
    return claimed


@pytest.fixture
def keeper_of() -> Iterator[Callable[[Database], LeaseKeeper]]:
    """Makes keepers that are closed after the test."""
    made: list[LeaseKeeper] = []

    def make(db: Database) -> LeaseKeeper:
        made.append(LeaseKeeper(db, LEASE_SECONDS))
        return made[-1]

    yield make
    for keeper in made:
        keeper.close()


def test_a_lease_outlives_its_duration_while_it_is_held(
    database: Database, claim: Claim, keeper_of: Callable[[Database], LeaseKeeper]
) -> None:
    with keeper_of(database).holding(claim, time.monotonic()) as held:
        assert not held.stop.wait(2 * LEASE_SECONDS)
        assert sweep_leases(database).expired == 0
    time.sleep(LEASE_SECONDS + 0.1)
    assert sweep_leases(database).expired == 1


def test_work_whose_lease_another_has_taken_is_told_that_it_is_lost(
    database: Database, claim: Claim, keeper_of: Callable[[Database], LeaseKeeper]
) -> None:
    with keeper_of(database).holding(claim, time.monotonic()) as held:
        with move_clock(database, seconds=60):
            assert sweep_leases(database).expired == 1
        assert held.stop.wait(LEASE_SECONDS)
        assert held.why == "lost"


def test_work_of_a_cancelled_job_is_told_so_and_keeps_its_lease(
    database: Database, claim: Claim, keeper_of: Callable[[Database], LeaseKeeper]
) -> None:
    with keeper_of(database).holding(claim, time.monotonic()) as held:
        request_cancel(database, by="test", job_id=claim.job_id)
        assert held.stop.wait(LEASE_SECONDS)
        assert held.why == "cancel"
        time.sleep(2 * LEASE_SECONDS)
        assert sweep_leases(database).expired == 0


def test_a_lease_that_cannot_be_renewed_counts_as_lost_before_the_ledger_can_give_it_away(
    database: Database, claim: Claim, keeper_of: Callable[[Database], LeaseKeeper]
) -> None:
    started = time.monotonic()
    away = Database("postgresql://nobody@127.0.0.1:1/nothing", name="away", pool_max=1)
    with away, keeper_of(away).holding(claim, started) as held:
        assert held.stop.wait(30)
        assert held.why == "lost"
        assert time.monotonic() - started >= LEASE_SECONDS


def test_a_process_that_ends_tells_all_its_work_and_whatever_starts_later(
    database: Database, claim: Claim, keeper_of: Callable[[Database], LeaseKeeper]
) -> None:
    keeper = keeper_of(database)
    with keeper.holding(claim, time.monotonic()) as held:
        keeper.stop_all()
        assert (held.stop.is_set(), held.why) == (True, "shutdown")
    with keeper.holding(claim, time.monotonic()) as later:
        assert (later.stop.is_set(), later.why) == (True, "shutdown")
    assert len(keeper) == 0


def test_renewal_goes_on_after_every_connection_was_cut(
    database: Database, claim: Claim, keeper_of: Callable[[Database], LeaseKeeper]
) -> None:
    with keeper_of(database).holding(claim, time.monotonic()) as held:
        until(lambda: _renewed_since(database, claim))
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert not held.stop.wait(2 * LEASE_SECONDS)


def _renewed_since(database: Database, claim: Claim) -> bool:
    with psycopg.connect(database.url) as connection:
        row = connection.execute(
            "SELECT lease_expires_at > started_at + make_interval(secs => %s) FROM ledger.steps WHERE id = %s",
            (LEASE_SECONDS + 0.1, claim.step_id),
        ).fetchone()
    return bool(row and row[0])
