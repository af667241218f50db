"""Armed sandboxes in the ledger: whose they are while they wait, who gets them, and until when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.batches import request_cancel
from ledger.connect import Database
from ledger.errors import IsolationUnverified, LeaseLost
from ledger.probes import record_probe
from ledger.reads import job_sandboxes
from ledger.records.probe import Check
from ledger.records.step import Claim, Completion, NextStep
from ledger.sandboxes import bind_sandbox, live_sandboxes, mark_sandbox, register_sandbox, renew_armed
from ledger.steps import claim_step, complete_step
from tests.fixtures.clock import move_clock
from tests.fixtures.probes import IMAGE, good_probe, subject

Claimed = Callable[..., Claim]


def arm(database: Database, claim: Claim, name: str, seconds: float = 60) -> None:
    """Registered under this step's lease, and waiting."""
    probe = good_probe(database)
    register_sandbox(
        database, step_id=claim.step_id, fence=claim.fence, name=name, engine_host="h", image=IMAGE, probe_id=probe,
        armed_seconds=seconds,
    )  # fmt: skip
    mark_sandbox(database, name, "armed", {})


def next_claim(database: Database, claim: Claim) -> Claim:
    """The job's next step, claimed, after this one was completed."""
    offer = complete_step(database, claim, Completion(result={}, next=NextStep(kind="decide", input={})))
    assert offer is not None
    following = claim_step(database, offer.step_id, owner="w1", lease_seconds=30, estimate=lambda _: claim.held)
    assert following is not None
    return following


def bind(database: Database, claim: Claim, name: str) -> bool:
    return bind_sandbox(database, name, step_id=claim.step_id, fence=claim.fence)


def test_it_outlives_the_step_that_armed_it_and_serves_one_other(database: Database, claimed: Claimed) -> None:
    first = claimed()
    arm(database, first, "a")
    second = next_claim(database, first)
    [row] = live_sandboxes(database)
    assert (row.state, row.step_id, row.waits, row.lease_live) == ("armed", first.step_id, True, True)
    assert bind(database, second, "a")
    assert not bind(database, second, "a")
    [row] = live_sandboxes(database)
    assert (row.state, row.step_id, row.fence, row.waits) == ("running", second.step_id, second.fence, False)
    assert row.lease_live
    [history] = job_sandboxes(database, first.job_id)
    assert history.evidence["armed_by_step"] == first.step_id
    next_claim(database, second)
    assert not live_sandboxes(database)[0].lease_live


def test_it_is_given_up_when_its_time_is_over(database: Database, claimed: Claimed) -> None:
    claim = claimed(lease_seconds=3600)
    arm(database, claim, "a", seconds=60)
    with move_clock(database, seconds=61):
        assert not live_sandboxes(database)[0].lease_live
        assert not bind(database, claim, "a")
    assert bind(database, claim, "a")


def test_only_a_step_of_its_own_job_that_holds_its_lease_gets_it(database: Database, claimed: Claimed) -> None:
    first, other = claimed(), claimed()
    arm(database, first, "a")
    assert not bind(database, other, "a")
    with pytest.raises(LeaseLost):
        bind_sandbox(database, "a", step_id=first.step_id, fence=first.fence + 1)
    with move_clock(database, seconds=31), pytest.raises(LeaseLost):
        bind(database, first, "a")
    assert live_sandboxes(database)[0].state == "armed"


def test_one_that_does_not_wait_yet_or_any_more_is_not_to_be_had(database: Database, claimed: Claimed) -> None:
    claim = claimed()
    for state in ("registered", "created", "running", "exited", "removed"):
        arm(database, claim, state)
        mark_sandbox(database, state, state, {})
        assert not bind(database, claim, state)
    assert not bind(database, claim, "none such")


def test_its_probe_is_asked_for_again(database: Database, claimed: Claimed) -> None:
    claim = claimed()
    arm(database, claim, "a")
    bad = Check(name="network.routes", ok=False, evidence="00000000 by eth0")
    record_probe(database, subject(), [bad], took_ms=1, lasts_seconds=60)
    with pytest.raises(IsolationUnverified):
        bind(database, claim, "a")
    assert live_sandboxes(database)[0].state == "armed"


def test_those_of_jobs_that_are_over_or_to_be_are_needless(database: Database, claimed: Claimed) -> None:
    ended, cancelled, going = claimed(), claimed(), claimed()
    for name, claim in (("ended", ended), ("cancelled", cancelled), ("going", going)):
        arm(database, claim, name)
    names = ["ended", "cancelled", "going", "none such"]
    assert renew_armed(database, names, 60) == {"none such"}
    complete_step(database, ended, Completion(result={}, end="model_error"))
    request_cancel(database, by="me", job_id=cancelled.job_id)
    assert renew_armed(database, names, 60) == {"ended", "cancelled", "none such"}


def test_one_that_is_renewed_waits_on_and_one_that_was_not_in_time_is_given_up(
    database: Database, claimed: Claimed
) -> None:
    claim = claimed(lease_seconds=3600)
    for name in ("renewed", "left"):
        arm(database, claim, name, seconds=10)
    with move_clock(database, seconds=8):
        assert renew_armed(database, ["renewed"], 10) == set()
    with move_clock(database, seconds=12):
        assert renew_armed(database, ["renewed", "left"], 10) == {"left"}
        assert not bind(database, claim, "left")
        assert bind(database, claim, "renewed")
    assert renew_armed(database, ["renewed"], 10) == {"renewed"}
