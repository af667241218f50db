"""A step's outcome is written once, by the holder of its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ledger.connect import Database, HeadMoved
from ledger.dispatch import ready_offers, sweep_leases
from ledger.errors import LeaseLost
from ledger.events import broken_links, read_events
from ledger.reads import find_job, job_agents, job_steps
from ledger.records.budget import Amounts
from ledger.records.step import Claim, Completion, Event, NewObject, NextStep
from ledger.steps import (
    MAX_ATTEMPTS,
    claim_step,
    complete_step,
    forfeit_leases,
    give_back,
    lease_owners,
    renew_leases,
)
from tests.fixtures.clock import move_clock
from tests.ledger.conftest import nothing

DECIDE_AGAIN = Completion(result={"ok": True}, next=NextStep(kind="decide"))


def test_one_of_many_claims_gets_the_lease(database: Database, first_step: Callable[..., int]) -> None:
    step = first_step()
    claims: list[Claim | None] = []

    def claim(number: int) -> None:
        claims.append(claim_step(database, step, owner=f"w{number}", lease_seconds=30, estimate=nothing))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claims) == 8
    assert len([c for c in claims if c is not None]) == 1


def test_an_unknown_step_and_another_queues_step_cannot_be_claimed(
    database: Database, first_step: Callable[..., int]
) -> None:
    step = first_step()
    assert claim_step(database, 10**12, owner="w", lease_seconds=30, estimate=nothing) is None
    assert claim_step(database, step, owner="w", lease_seconds=30, estimate=nothing, queues=["publish"]) is None
    assert claim_step(database, step, owner="w", lease_seconds=30, estimate=nothing, queues=["decide"]) is not None


def test_a_completion_adds_the_next_step_already_offered(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    offer = complete_step(database, claim, DECIDE_AGAIN)
    assert offer is not None
    assert offer.queue == "decide"
    assert [(s.seq, s.state) for s in job_steps(database, claim.job_id)] == [(1, "done"), (2, "ready")]
    assert ready_offers(database, limit=10, stale_seconds=60) == []
    assert [o.step_id for o in ready_offers(database, limit=10, stale_seconds=0)] == [offer.step_id]


def test_a_completion_repeated_after_an_unknown_commit_is_the_same_completion(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(hold=Amounts(steps=1))
    completion = DECIDE_AGAIN.model_copy(update={"spent": Amounts(steps=1)})
    assert complete_step(database, claim, completion) == complete_step(database, claim, completion)
    assert len(job_steps(database, claim.job_id)) == 2
    assert job_agents(database, claim.job_id)[0].account.spent.steps == 1


def test_a_paused_worker_cannot_complete_a_step_it_lost(database: Database, claimed: Callable[..., Claim]) -> None:
    stale = claimed(lease_seconds=10)
    with move_clock(database, seconds=11):
        with pytest.raises(LeaseLost):  # expired, and not even swept yet
            complete_step(database, stale, DECIDE_AGAIN)
        assert sweep_leases(database).expired == 1
        fresh = claim_step(database, stale.step_id, owner="w2", lease_seconds=30, estimate=nothing)
        assert fresh is not None
        assert fresh.fence == stale.fence + 1
        for write in (
            lambda: complete_step(database, stale, DECIDE_AGAIN),
            lambda: give_back(database, stale, why="late", delay_seconds=0),
        ):
            with pytest.raises(LeaseLost):
                write()
        assert renew_leases(database, [(stale.step_id, stale.fence)], 30) == {stale.step_id: "lost"}
        assert complete_step(database, fresh, DECIDE_AGAIN) is not None


def test_a_renewed_lease_outlives_its_first_term(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed(lease_seconds=10)
    with move_clock(database, seconds=8):
        assert renew_leases(database, [(claim.step_id, claim.fence)], 10) == {claim.step_id: "kept"}
    with move_clock(database, seconds=16):
        assert sweep_leases(database).expired == 0
        assert complete_step(database, claim, DECIDE_AGAIN) is not None


def test_the_head_moves_only_from_the_tree_the_result_was_made_from(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed()
    moved = Completion(
        result={}, next=NextStep(kind="decide"), head_tree="2" * 40, objects=(NewObject(kind="pack", data=b"PACK"),)
    )
    wrong = claim.model_copy(update={"head_tree": "3" * 40})
    with pytest.raises(HeadMoved):
        complete_step(database, wrong, moved)
    assert job_steps(database, claim.job_id)[0].state == "leased"
    complete_step(database, claim, moved)
    assert job_agents(database, claim.job_id)[0].head_tree == "2" * 40


def test_a_step_out_of_attempts_needs_attention_after_its_cleanup(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(lease_seconds=1)
    for expected in range(2, MAX_ATTEMPTS + 2):
        with move_clock(database, seconds=5 * expected):
            assert sweep_leases(database).expired == 1
            again = claim_step(database, claim.step_id, owner="w", lease_seconds=1, estimate=nothing)
        assert again is not None
        assert again.attempt == expected
        assert again.cancelling == (expected > MAX_ATTEMPTS)
    assert again.end_with == "too_many_attempts"
    with move_clock(database, seconds=5 * expected):
        complete_step(database, again, Completion(result={}, end=again.end_with))
    job = find_job(database, str(claim.job_id))
    assert (job.state, job.reason) == ("needs_attention", "too_many_attempts")


def test_given_back_steps_wait_for_their_delay_and_then_fail_with_the_reason_given(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim: Claim | None = claimed()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert claim is not None
        give_back(database, claim, why="provider busy", delay_seconds=60, exhausted="model_error")
        give_back(database, claim, why="provider busy", delay_seconds=60, exhausted="model_error")  # repeated
        assert claim_step(database, claim.step_id, owner="w", lease_seconds=9, estimate=nothing) is None
        with move_clock(database, seconds=61 * attempt):
            claim = claim_step(database, claim.step_id, owner="w", lease_seconds=9000, estimate=nothing)
    assert claim is None
    assert find_job(database, "batch-1/job-1").reason == "model_error"


def test_a_job_past_its_deadline_is_not_started_again(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    offer = complete_step(database, claim, DECIDE_AGAIN)
    assert offer is not None
    with move_clock(database, seconds=901):
        assert claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=nothing) is None
    assert find_job(database, str(claim.job_id)).reason == "budget:deadline"


def test_hostile_text_does_not_break_a_completion(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    told = Event(kind="observation", body={"tex\x00t": "a\x00b\ud800c"})
    complete_step(
        database,
        claim,
        Completion(result={"out": "\x00"}, next=NextStep(kind="decide", input={"x": "\udfff"}), events=(told,)),
    )
    bodies = [event.body for event in read_events(database, claim.job_id) if event.kind == "observation"]
    assert bodies == [{"tex�t": "a�b�c"}]
    assert broken_links(database, claim.job_id) == []


def test_leases_of_an_owner_that_was_seen_dead_run_out_at_once(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed()
    assert lease_owners(database, "w") == ["w1"]
    assert lease_owners(database, "x") == []
    assert forfeit_leases(database, "w") == 0
    assert forfeit_leases(database, "w1") == 1
    with pytest.raises(LeaseLost):
        complete_step(database, claim, DECIDE_AGAIN)
    assert sweep_leases(database).expired == 1
    assert lease_owners(database, "w") == []


def test_an_attempt_that_does_not_count_can_be_made_again(database: Database, claimed: Callable[..., Claim]) -> None:
    claim: Claim | None = claimed()
    for fence in range(1, MAX_ATTEMPTS + 3):
        assert claim is not None
        assert (claim.attempt, claim.fence) == (1, fence)
        give_back(database, claim, why="shutdown", delay_seconds=0, counted=False)
        claim = claim_step(database, claim.step_id, owner="w", lease_seconds=30, estimate=nothing)


def test_a_job_that_no_worker_can_read_does_not_go_round_for_ever(
    database: Database, first_step: Callable[..., int]
) -> None:
    step = first_step()
    with database.transaction() as connection:
        connection.execute("UPDATE ledger.jobs SET spec = spec || '{\"of_tomorrow\": 1}'")
    for attempt in range(MAX_ATTEMPTS):
        with move_clock(database, seconds=1000 * attempt):
            for _ in range(3):  # repeated messages do not use attempts up
                assert claim_step(database, step, owner="w", lease_seconds=9, estimate=nothing) is None
            assert find_job_state(database) == ("queued" if attempt + 1 < MAX_ATTEMPTS else "needs_attention")


def find_job_state(database: Database) -> str:
    with database.transaction() as connection:
        row = connection.execute("SELECT state FROM ledger.jobs").fetchone()
    assert row is not None
    return str(row["state"])
