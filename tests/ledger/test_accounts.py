"""Nobody overspends: holds before work, settled once, and conservation at every commit."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from ledger.connect import Database
from ledger.dispatch import sweep_leases
from ledger.reads import AccountRow, find_job, job_agents
from ledger.records.budget import Amounts, Budget
from ledger.records.step import Claim, Completion, NextStep
from ledger.steps import claim_step, complete_step, give_back
from tests.fixtures.clock import move_clock

SMALL = Budget(steps=2, tool_calls=1, input_tokens=100, output_tokens=50, cost_usd=0.5, sandbox_seconds=100)
AGAIN = NextStep(kind="decide")


def account_of(database: Database, job_id: int) -> AccountRow:
    """The root agent's account, after a check that it conserves."""
    account = job_agents(database, job_id)[0].account
    assert account.granted == account.spent + account.held + account.delegated + account.free
    return account


def test_a_hold_is_reserved_at_the_claim_and_settled_once(database: Database, claimed: Callable[..., Claim]) -> None:
    hold = Amounts(steps=1, input_tokens=80, output_tokens=50, cost_microusd=1000)
    claim = claimed(hold=hold, budget=SMALL)
    assert account_of(database, claim.job_id).held == hold
    took = Amounts(steps=1, input_tokens=30, output_tokens=10, cost_microusd=400)
    complete_step(database, claim, Completion(result={}, next=AGAIN, spent=took))
    account = account_of(database, claim.job_id)
    assert (account.held, account.spent) == (Amounts(), took)


@pytest.mark.parametrize(
    ("hold", "resource"),
    [
        (Amounts(steps=3), "steps"),
        (Amounts(tool_calls=2), "tool_calls"),
        (Amounts(input_tokens=101), "input_tokens"),
        (Amounts(output_tokens=51), "output_tokens"),
        (Amounts(cost_microusd=500_001), "cost_microusd"),
        (Amounts(sandbox_ms=75_001), "sandbox_ms"),  # a quarter is kept for verification
        (Amounts(agents=5), "agents"),
    ],
)
def test_what_the_account_cannot_carry_is_not_started(
    database: Database, first_step: Callable[..., int], hold: Amounts, resource: str
) -> None:
    step = first_step(budget=SMALL)
    assert claim_step(database, step, owner="w", lease_seconds=9, estimate=lambda _claim: hold) is None
    job = find_job(database, "batch-1/job-1")
    assert (job.state, job.reason) == ("budget_exhausted", f"budget:{resource}")
    assert account_of(database, job.id).spent == Amounts()


def test_only_the_verification_of_the_head_may_hold_the_reserve(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(budget=SMALL)
    assert (claim.free.sandbox_ms, claim.reserve.sandbox_ms) == (75_000, 25_000)
    offer = complete_step(database, claim, Completion(result={}, next=NextStep(kind="verify", input={"on": "head"})))
    assert offer is not None
    everything = Amounts(sandbox_ms=100_000)
    verify = claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=lambda _claim: everything)
    assert verify is not None
    assert verify.held == everything


def test_an_overrun_is_paid_from_what_is_free(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed(hold=Amounts(input_tokens=50), budget=SMALL)
    complete_step(database, claim, Completion(result={}, next=AGAIN, spent=Amounts(input_tokens=70)))
    assert account_of(database, claim.job_id).spent.input_tokens == 70
    assert find_job(database, str(claim.job_id)).state == "running"


def test_an_overrun_that_nothing_can_pay_is_recorded_and_stops_the_agent(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(hold=Amounts(input_tokens=50), budget=SMALL)
    offer = complete_step(database, claim, Completion(result={}, next=AGAIN, spent=Amounts(input_tokens=170)))
    assert offer is None
    assert account_of(database, claim.job_id).spent.input_tokens == 100
    assert find_job(database, str(claim.job_id)).reason == "budget:input_tokens"


def test_a_model_call_that_may_have_been_paid_for_stays_spent(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(hold=Amounts(steps=1, input_tokens=50, cost_microusd=9), budget=SMALL, lease_seconds=5)
    with move_clock(database, seconds=6):
        assert sweep_leases(database).expired == 1
    account = account_of(database, claim.job_id)
    assert account.spent == Amounts(input_tokens=50, cost_microusd=9)
    assert account.held == Amounts()


def test_what_a_given_back_attempt_took_is_settled(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed(hold=Amounts(steps=1, input_tokens=50), budget=SMALL)
    give_back(database, claim, why="malformed", delay_seconds=0, spent=Amounts(input_tokens=20))
    account = account_of(database, claim.job_id)
    assert (account.spent, account.held) == (Amounts(input_tokens=20), Amounts())


@pytest.mark.parametrize("bucket", ["spent", "held", "delegated", "free", "granted"])
def test_the_database_refuses_amounts_that_do_not_conserve(
    database: Database, claimed: Callable[..., Claim], bucket: str
) -> None:
    claimed(budget=SMALL)
    with (
        psycopg.connect(database.url) as connection,
        pytest.raises(psycopg.errors.CheckViolation, match="conserved"),
    ):
        connection.execute(
            f"UPDATE ledger.accounts SET {bucket} = ledger.plus({bucket}, ROW(1,0,0,0,0,0,0)::ledger.amounts)"  # noqa: S608
        )


def test_the_database_refuses_negative_amounts(database: Database, claimed: Callable[..., Claim]) -> None:
    claimed(budget=SMALL)
    with (
        psycopg.connect(database.url) as connection,
        pytest.raises(psycopg.errors.CheckViolation, match="free_not_negative"),
    ):
        connection.execute(
            "UPDATE ledger.accounts SET free = ROW(-1,0,0,0,0,0,0)::ledger.amounts,"
            " spent = ledger.minus(granted, ROW(-1,0,0,0,0,0,0)::ledger.amounts)"
        )
