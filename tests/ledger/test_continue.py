"""A job that ran out of budget goes on from where it stood, with what was added, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ledger.afterwards import audit_job, continue_job
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.reads import find_job, job_agents, job_steps
from ledger.records.budget import Amounts, Budget
from ledger.records.job import Reason
from ledger.records.step import Claim, Completion, NewObject, NextStep
from ledger.steps import MARKS_KEPT, claim_step, complete_step
from tests.ledger.conftest import nothing

MORE = Amounts(steps=5, cost_microusd=1_000_000)


def goes_on(database: Database, job_id: int, lease_seconds: float = 30) -> Claim:
    """The claim of the first step after a job was continued."""
    offers = admit_jobs(database, capacity=1000)
    claim = claim_step(database, offers[0].step_id, owner="w", lease_seconds=lease_seconds, estimate=nothing)
    assert claim is not None
    assert claim.job_id == job_id
    return claim


def ended(database: Database, claim: Claim, reason: Reason, **more: Any) -> None:
    """Ends the claim's job for `reason`."""
    complete_step(database, claim, Completion(result={}, end=reason, **more))
    assert find_job(database, str(claim.job_id)).reason == reason


def test_head_memory_and_books_stay_and_what_was_added_is_free(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(hold=Amounts(steps=3))
    pack = NewObject(kind="pack", data=b"PACK")
    ended(
        database, claim, "budget:steps", spent=Amounts(steps=3), head_tree="2" * 40, objects=(pack,), mark="m",
        model_state={"position": 3},
    )  # fmt: skip
    before = job_agents(database, claim.job_id)[0].account
    assert continue_job(database, claim.job_id, by="me", added=MORE) == "continued"
    agent = job_agents(database, claim.job_id)[0]
    assert (agent.head_tree, agent.model_state) == ("2" * 40, {"position": 3})
    assert agent.account.granted == before.granted + MORE
    assert agent.account.free == before.free + MORE
    assert agent.account.spent == before.spent
    again = goes_on(database, claim.job_id)
    assert (again.kind, again.seq, again.model_state, again.recent) == ("decide", 2, {"position": 3}, ())
    assert audit_job(database, claim.job_id) == []
    assert continue_job(database, claim.job_id, by="me", added=MORE) == "other"


def test_a_step_that_was_not_begun_is_the_one_that_is_done(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed(budget=Budget(tool_calls=0))
    call = {"call_id": "call_1", "name": "search", "arguments": {"text": "x"}}
    offer = complete_step(database, claim, Completion(result={}, next=NextStep(kind="act", input=call)))
    assert offer is not None
    wants = lambda _claim: Amounts(tool_calls=1)  # noqa: E731
    assert claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=wants) is None
    assert find_job(database, str(claim.job_id)).reason == "budget:tool_calls"
    assert continue_job(database, claim.job_id, by="me", added=Amounts(tool_calls=1)) == "continued"
    again = goes_on(database, claim.job_id)
    assert (again.kind, again.input) == ("act", call)


def test_an_overrun_loses_no_decision(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed(hold=Amounts(input_tokens=100), budget=Budget(input_tokens=100))
    call = {"call_id": "call_1", "name": "search", "arguments": {}}
    over = Completion(result={}, spent=Amounts(input_tokens=130), next=NextStep(kind="act", input=call))
    assert complete_step(database, claim, over) is None
    assert complete_step(database, claim, over) is None  # repeated, it is the same
    job = find_job(database, str(claim.job_id))
    assert (job.state, job.reason) == ("budget_exhausted", "budget:input_tokens")
    assert [step.state for step in job_steps(database, claim.job_id)] == ["done", "cancelled"]
    assert audit_job(database, claim.job_id) == []
    assert continue_job(database, claim.job_id, by="me", added=Amounts(input_tokens=500)) == "continued"
    assert goes_on(database, claim.job_id).input == call


def test_after_a_call_that_was_cut_short_comes_the_next_turn(database: Database, claimed: Callable[..., Claim]) -> None:
    offer = complete_step(database, claimed(), Completion(result={}, next=NextStep(kind="act", input={})))
    assert offer is not None
    claim = claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=nothing)
    assert claim is not None
    ended(database, claim, "budget:sandbox_ms")
    assert continue_job(database, claim.job_id, by="me", added=Amounts(sandbox_ms=5)) == "continued"
    again = goes_on(database, claim.job_id)
    assert (again.kind, again.input) == ("decide", {"observed": offer.step_id})


def test_a_verification_that_was_cut_short_is_done_again(database: Database, claimed: Callable[..., Claim]) -> None:
    asked = NextStep(kind="verify", input={"on": "head"})
    offer = complete_step(database, claimed(), Completion(result={}, next=asked, job_state="verifying"))
    assert offer is not None
    claim = claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=nothing)
    assert claim is not None
    ended(database, claim, "budget:sandbox_ms")
    assert continue_job(database, claim.job_id, by="me", added=Amounts(sandbox_ms=5)) == "continued"
    again = goes_on(database, claim.job_id)
    assert (again.kind, again.input) == ("verify", {"on": "head"})


@pytest.mark.parametrize(
    ("reason", "added", "wall_ms", "outcome"),
    [
        ("budget:steps", Amounts(tool_calls=9), 0, "steps"),
        ("budget:cost_microusd", Amounts(steps=1), 60_000, "cost_microusd"),
        ("budget:deadline", Amounts(steps=9), 0, "deadline"),
        ("no_progress", MORE, 0, "other"),
        ("verification_failed", MORE, 0, "other"),
    ],
)
def test_what_would_end_at_once_again_is_left_as_it_was(
    database: Database, claimed: Callable[..., Claim], reason: Reason, added: Amounts, wall_ms: int, outcome: str
) -> None:
    claim = claimed()
    ended(database, claim, reason)
    before = job_agents(database, claim.job_id)[0].account
    assert continue_job(database, claim.job_id, by="me", added=added, wall_ms=wall_ms) == outcome
    assert job_agents(database, claim.job_id)[0].account == before
    assert find_job(database, str(claim.job_id)).reason == reason
    assert continue_job(database, 10**9, by="me", added=added) == "unknown"


def test_the_clock_goes_on_from_what_was_left(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed(budget=Budget(wall_seconds=900))
    ended(database, claim, "budget:steps")
    with psycopg.connect(database.url) as connection:
        connection.execute("UPDATE ledger.jobs SET finished_at = deadline_at - interval '100 seconds'")
    assert continue_job(database, claim.job_id, by="me", added=MORE, wall_ms=20_000) == "continued"
    again = goes_on(database, claim.job_id)
    assert 100_000 < again.remaining_ms <= 120_000


def test_only_the_last_fingerprints_are_kept(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    for number in range(MARKS_KEPT + 3):
        assert claim.recent == tuple(f"m{one}" for one in range(number))[-MARKS_KEPT:]
        done = Completion(result={}, next=NextStep(kind="decide"), mark=f"m{number}")
        offer = complete_step(database, claim, done)
        assert offer is not None
        following = claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=nothing)
        assert following is not None
        claim = following
    offer = complete_step(database, claim, Completion(result={}, next=NextStep(kind="decide")))
    assert offer is not None
    last = claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=nothing)
    assert last is not None
    assert last.recent == claim.recent
