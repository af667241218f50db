"""What can be done about a job that has ended, and the audit of its books."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from ledger.actions import action_id_of, intend
from ledger.afterwards import audit_job, ended_jobs, resolve_action, retry_job, verify_again
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.errors import BadInput
from ledger.reads import find_job, job_agents, job_steps
from ledger.records.budget import Amounts
from ledger.records.step import Claim, Completion, NewObject, NextStep
from ledger.sandboxes import register_sandbox
from ledger.steps import claim_step, complete_step
from tests.fixtures.probes import IMAGE, good_probe
from tests.ledger.conftest import TREE, nothing


def spent_and_failed(database: Database, claimed: Callable[..., Claim]) -> Claim:
    """A job that moved its head, spent something and failed."""
    claim = claimed(hold=Amounts(steps=3, sandbox_ms=5000))
    done = Completion(
        result={},
        end="verification_failed",
        spent=Amounts(steps=3, sandbox_ms=4000),
        head_tree="2" * 40,
        objects=(NewObject(kind="pack", data=b"PACK"),),
        model_state={"position": 3},
    )
    complete_step(database, claim, done)
    return claim


def test_a_retry_starts_from_the_base_with_a_full_budget_and_keeps_what_was_spent(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = spent_and_failed(database, claimed)
    assert ended_jobs(database, claim.batch_id, states=["failed"], reasons=["verification_failed"]) == [claim.job_id]
    assert ended_jobs(database, claim.batch_id, reasons=["verified"]) == []
    assert retry_job(database, claim.job_id, by="me")
    assert not retry_job(database, claim.job_id, by="me")
    agent = job_agents(database, claim.job_id)[0]
    assert (agent.head_tree, agent.model_state) == (TREE, {})
    assert (agent.account.free.steps, agent.account.spent.steps, agent.account.granted.steps) == (40, 3, 43)
    (offer,) = admit_jobs(database, capacity=9)
    again = claim_step(database, offer.step_id, owner="w", lease_seconds=9, estimate=nothing)
    assert again is not None
    assert (again.kind, again.attempt, again.seq) == ("decide", 1, 2)
    assert audit_job(database, claim.job_id) == []


def test_verifying_again_keeps_the_head(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = spent_and_failed(database, claimed)
    assert verify_again(database, claim.job_id, by="me")
    assert job_agents(database, claim.job_id)[0].head_tree == "2" * 40
    assert job_steps(database, claim.job_id)[-1].input == {"on": "head", "fresh": True}
    account = job_agents(database, claim.job_id)[0].account
    assert (account.free.sandbox_ms, account.free.steps) == (600_000, 37)


@pytest.mark.parametrize("done", [True, False])
def test_an_uncertain_effect_waits_for_a_person(database: Database, claimed: Callable[..., Claim], done: bool) -> None:
    claim = claimed()
    action = action_id_of(claim, "push_branch", {"ref": "x"})
    intend(
        database,
        claim,
        action_id=action,
        tool="push_branch",
        arguments={"ref": "x"},
        effect="external",
        before_tree=TREE,
    )
    with pytest.raises(BadInput, match="intended, not uncertain"):
        resolve_action(database, action, done=done, by="me")
    end = Completion(
        result={}, end="effect_uncertain", action_id=action, action_state="uncertain", receipt={"found": "other"}
    )
    complete_step(database, claim, end)
    assert find_job(database, str(claim.job_id)).state == "needs_attention"
    assert [finding.finding for finding in audit_job(database, claim.job_id)] == ["uncertain effect"]
    resolve_action(database, action, done=done, by="me")
    last = job_steps(database, claim.job_id)[-1]
    assert (last.kind, last.state, last.input) == ("publish", "ready", {"resolved": action})
    with pytest.raises(BadInput, match="not uncertain"):
        resolve_action(database, action, done=done, by="me")
    with pytest.raises(BadInput, match="no action"):
        resolve_action(database, "f" * 64, done=done, by="me")


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE ledger.steps SET state = 'ready', finished_at = NULL", "step open although the job has ended"),
        ("UPDATE ledger.jobs SET state = 'running', reason = NULL, finished_at = NULL", "nothing left to do"),
        (
            "UPDATE ledger.accounts SET held = ROW(1,0,0,0,0,0,0)::ledger.amounts,"
            " free = ledger.minus(free, ROW(1,0,0,0,0,0,0)::ledger.amounts)",
            "something is held",
        ),
        (
            "ALTER TABLE ledger.accounts DROP CONSTRAINT conserved;"
            " UPDATE ledger.accounts SET spent = ROW(99,0,0,0,0,0,0)::ledger.amounts",
            "account does not conserve",
        ),
        ("UPDATE ledger.jobs SET state = 'completed', reason = 'verified'", "verdict of another tree"),
        ("UPDATE ledger.chains SET seq = seq + 1", "event chain broken"),
    ],
)
def test_the_audit_finds_damage(database: Database, claimed: Callable[..., Claim], damage: str, finding: str) -> None:
    claim = spent_and_failed(database, claimed)
    assert audit_job(database, claim.job_id) == []
    with psycopg.connect(database.url) as connection:
        for part in damage.split(";"):
            connection.execute(part.encode())
    assert any(found.finding.startswith(finding) for found in audit_job(database, claim.job_id))


def test_the_audit_finds_sandboxes_and_intents_that_were_left(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed()
    register_sandbox(
        database,
        step_id=claim.step_id,
        fence=claim.fence,
        name="s",
        engine_host="h",
        image=IMAGE,
        probe_id=good_probe(database),
    )
    intend(database, claim, action_id="a", tool="push", arguments={}, effect="external", before_tree=TREE)
    complete_step(database, claim, Completion(result={}, end="no_progress"))
    found = {one.finding for one in audit_job(database, claim.job_id)}
    assert found == {"sandbox not proved dead", "intent without receipt"}


def test_a_job_that_goes_on_cannot_be_reopened(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    complete_step(database, claim, Completion(result={}, next=NextStep(kind="decide")))
    assert not verify_again(database, claim.job_id, by="me")
    assert not retry_job(database, claim.job_id, by="me")
