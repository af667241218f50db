"""A paused batch begins no step, loses none, and its clocks stand still."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from ledger.afterwards import audit_job
from ledger.batches import pause_batch, request_cancel, resume_batch, submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs, ready_offers
from ledger.reads import batch_progress, find_batch, find_job, job_steps
from ledger.records.job import BatchSpec
from ledger.records.step import Claim, Completion, NextStep
from ledger.steps import claim_step, complete_step, give_back
from tests.ledger.conftest import job_spec, nothing

TURN = Completion(result={}, next=NextStep(kind="decide"))


def take(database: Database, step_id: int) -> Claim | None:
    return claim_step(database, step_id, owner="w", lease_seconds=30, estimate=nothing)


def test_nothing_is_admitted_or_begun_and_what_runs_ends(database: Database) -> None:
    submit_batch(database, BatchSpec(name="b", max_parallel=2), [job_spec(f"j{number}") for number in range(3)])
    batch = find_batch(database, "b").id
    first, second = admit_jobs(database, capacity=10)
    running = take(database, first.step_id)
    assert running is not None
    assert pause_batch(database, batch, by="me") == "paused"
    assert pause_batch(database, batch, by="you") == "before"
    assert find_batch(database, "b").paused_by == "me"
    assert batch_progress(database, batch).paused
    # What runs ends, what follows and what was offered already is put aside, and nobody offers it again.
    offer = complete_step(database, running, TURN)
    assert offer is not None
    assert take(database, offer.step_id) is None
    assert take(database, second.step_id) is None
    assert find_job(database, "b/j1").started_at is None
    assert ready_offers(database, limit=10, stale_seconds=0) == []
    complete_step_end(database, "b/j0")
    assert admit_jobs(database, capacity=10) == []


def complete_step_end(database: Database, ref: str) -> None:
    """The job's own end by a person's wish makes room for another; a paused batch takes none."""
    request_cancel(database, by="me", job_id=find_job(database, ref).id)
    assert find_job(database, ref).state == "cancelled"


def test_what_was_put_aside_goes_on_and_nothing_else(database: Database, claimed: Callable[..., Claim]) -> None:
    claim, other = claimed(), claimed()
    offer, others = complete_step(database, claim, TURN), complete_step(database, other, TURN)
    assert offer is not None
    assert others is not None
    assert pause_batch(database, claim.batch_id, by="me") == "paused"
    assert take(database, offer.step_id) is None
    assert take(database, others.step_id) is not None
    assert resume_batch(database, claim.batch_id) == "resumed"
    assert resume_batch(database, claim.batch_id) == "before"
    assert [one.step_id for one in ready_offers(database, limit=10, stale_seconds=60)] == [offer.step_id]
    again = take(database, offer.step_id)
    assert again is not None
    assert (again.attempt, again.seq) == (1, 2)
    assert find_batch(database, str(claim.batch_id)).paused_at is None
    assert audit_job(database, claim.job_id) == []


def test_jobs_that_were_never_admitted_stay_so(database: Database) -> None:
    submit_batch(database, BatchSpec(name="b"), [job_spec("j0"), job_spec("j1")])
    batch = find_batch(database, "b").id
    assert len(admit_jobs(database, capacity=1)) == 1
    pause_batch(database, batch, by="me")
    resume_batch(database, batch)
    assert [one.step_id for one in ready_offers(database, limit=10, stale_seconds=60)] == []
    assert len(admit_jobs(database, capacity=2)) == 1


def test_a_paused_batch_takes_nobodys_place(database: Database) -> None:
    for name in ("paused", "other"):
        submit_batch(database, BatchSpec(name=name), [job_spec(f"j{number}") for number in range(3)])
    batch = find_batch(database, "paused").id
    assert len(admit_jobs(database, capacity=3)) == 3
    request_cancel(database, by="me", batch_id=find_batch(database, "other").id)
    submit_batch(database, BatchSpec(name="third"), [job_spec(f"j{number}") for number in range(3)])
    admit_jobs(database, capacity=3)
    pause_batch(database, batch, by="me")
    pause_batch(database, find_batch(database, "third").id, by="me")
    submit_batch(database, BatchSpec(name="urgent"), [job_spec("j")])
    assert len(admit_jobs(database, capacity=3)) == 1


def test_the_clock_stands_still(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    offer = complete_step(database, claim, TURN)
    assert offer is not None
    pause_batch(database, claim.batch_id, by="me")
    before = find_job(database, str(claim.job_id)).deadline_at
    with psycopg.connect(database.url) as connection:
        connection.execute("UPDATE ledger.batches SET paused_at = paused_at - interval '2 hours'")
        connection.execute("UPDATE ledger.jobs SET started_at = started_at - interval '3 hours'")
    resume_batch(database, claim.batch_id)
    after = find_job(database, str(claim.job_id)).deadline_at
    assert before is not None
    assert after is not None
    assert 7_200 <= (after - before).total_seconds() < 7_260


def test_a_job_can_be_cancelled_while_its_batch_is_paused(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    give_back(database, claim, why="later", delay_seconds=0)
    pause_batch(database, claim.batch_id, by="me")
    assert take(database, claim.step_id) is None
    request_cancel(database, by="me", job_id=claim.job_id)
    cleanup = take(database, claim.step_id)
    assert cleanup is not None
    assert cleanup.cancelling
    complete_step(database, cleanup, Completion(result={}, end="cancelled_by_user"))
    assert find_job(database, str(claim.job_id)).state == "cancelled"
    assert pause_batch(database, claim.batch_id, by="me") == "finished"


def test_there_is_no_such_batch(database: Database) -> None:
    assert pause_batch(database, 10**9, by="me") == "unknown"
    assert resume_batch(database, 10**9) == "unknown"


@pytest.mark.parametrize("round_", range(5))
def test_no_claim_falls_between_a_pause_and_its_end(database: Database, round_: int) -> None:
    submit_batch(database, BatchSpec(name="b"), [job_spec(f"j{number}") for number in range(8)])
    batch = find_batch(database, "b").id
    offers = admit_jobs(database, capacity=100)
    taken: list[Claim] = []

    def claim_all() -> None:
        with Database(database.url, name="claims") as own:
            taken.extend(claim for offer in offers if (claim := take(own, offer.step_id)) is not None)

    threads = [threading.Thread(target=claim_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        pause_batch(database, batch, by="me")
        resume_batch(database, batch)
    for thread in threads:
        thread.join()
    # Whatever was put aside is offered again: together all steps are begun, each once.
    left = ready_offers(database, limit=100, stale_seconds=0)
    taken += [claim for offer in left if (claim := take(database, offer.step_id)) is not None]
    assert sorted(claim.step_id for claim in taken) == sorted(offer.step_id for offer in offers)
    assert all(len(job_steps(database, claim.job_id)) == 1 for claim in taken)
