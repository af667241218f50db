"""Cancelling, sandboxes and the chain of events."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from ledger.actions import action_id_of, intend
from ledger.batches import Cancelled, request_cancel, submit_batch
from ledger.connect import ActionConflict, Database
from ledger.dispatch import sweep_leases, try_lead
from ledger.errors import LeaseLost
from ledger.events import broken_links, read_events
from ledger.evidence import find_evidence, record_evidence
from ledger.reads import find_job
from ledger.records.job import BatchSpec
from ledger.records.step import Claim, Completion, Event, NextStep
from ledger.records.verdict import TestRun
from ledger.sandboxes import live_sandboxes, mark_sandbox, register_sandbox
from ledger.steps import claim_step, complete_step, renew_leases
from tests.fixtures.clock import move_clock
from tests.fixtures.probes import IMAGE, good_probe
from tests.ledger.conftest import TREE, job_spec, nothing


def test_a_waiting_job_is_cancelled_at_once(database: Database) -> None:
    batch = submit_batch(database, BatchSpec(name="b"), [job_spec("x"), job_spec("y")]).batch_id
    assert request_cancel(database, by="me", batch_id=batch) == Cancelled(ended=0, cancelled=2, cancelling=0)
    assert request_cancel(database, by="me", batch_id=batch) == Cancelled(ended=0, cancelled=0, cancelling=0)
    job = find_job(database, "b/x")
    assert (job.state, job.reason) == ("cancelled", "cancelled_by_user")


def test_a_working_job_ends_when_its_worker_says_so(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    assert request_cancel(database, by="me", job_id=claim.job_id).cancelling == 1
    assert find_job(database, str(claim.job_id)).state == "running"
    assert renew_leases(database, [(claim.step_id, claim.fence)], 30) == {claim.step_id: "cancel"}
    assert complete_step(database, claim, Completion(result={}, next=NextStep(kind="decide"))) is None
    assert find_job(database, str(claim.job_id)).reason == "cancelled_by_user"


def test_a_cancelled_job_whose_worker_died_waits_for_the_proof(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(lease_seconds=5)
    request_cancel(database, by="me", job_id=claim.job_id)
    with move_clock(database, seconds=6):
        assert sweep_leases(database).expired == 1
        assert find_job(database, str(claim.job_id)).state == "running"
        cleanup = claim_step(database, claim.step_id, owner="w2", lease_seconds=5, estimate=nothing)
        assert cleanup is not None
        assert cleanup.cancelling
        complete_step(database, cleanup, Completion(result={}, end=cleanup.end_with))
    assert find_job(database, str(claim.job_id)).state == "cancelled"


def test_a_sandbox_is_registered_under_a_lease_and_closed_once(
    database: Database, claimed: Callable[..., Claim]
) -> None:
    claim = claimed(lease_seconds=5)
    register_sandbox(
        database,
        step_id=claim.step_id,
        fence=claim.fence,
        name="s1",
        engine_host="h",
        image=IMAGE,
        probe_id=good_probe(database),
    )
    mark_sandbox(database, "s1", "running", {"container": "c"})
    (row,) = live_sandboxes(database, step_id=claim.step_id)
    assert (row.state, row.lease_live, row.evidence) == ("running", True, {"container": "c"})
    with move_clock(database, seconds=6):
        assert not live_sandboxes(database)[0].lease_live
        with pytest.raises(LeaseLost):
            register_sandbox(
                database, step_id=claim.step_id, fence=claim.fence, name="s2", engine_host="h", image=IMAGE
            )
    mark_sandbox(database, "s1", "removed", {"seen": "gone"})
    mark_sandbox(database, "s1", "running", {})
    assert live_sandboxes(database, job_id=claim.job_id) == []


def test_an_action_keeps_its_identity_over_attempts(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    action = action_id_of(claim, "apply_patch", {"a": 1})
    assert action != action_id_of(claim, "apply_patch", {"a": 2})

    def write(arguments: dict[str, int]) -> bool:
        return intend(
            database,
            claim,
            action_id=action,
            tool="apply_patch",
            arguments=arguments,
            effect="workspace",
            before_tree=TREE,
        ).found

    assert [write({"a": 1}), write({"a": 1})] == [False, True]
    with pytest.raises(ActionConflict):
        write({"a": 2})
    complete_step(
        database, claim, Completion(result={}, next=NextStep(kind="decide"), action_id=action, receipt={"after": TREE})
    )
    kinds = [event.kind for event in read_events(database, claim.job_id)]
    assert kinds == ["job_submitted", "job_started", "action_intended", "step_done"]


def test_evidence_is_found_by_its_key(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    run = TestRun(evidence_key="k", tree=TREE, exit_code=0, ended="exited", output_truncated=False, report="ok")
    assert find_evidence(database, "k") is None
    record_evidence(database, claim, run)
    found = find_evidence(database, "k")
    assert found is not None
    assert found.reused
    assert found.tree == TREE


def test_the_chain_is_whole_and_tampering_shows(database: Database, claimed: Callable[..., Claim]) -> None:
    claim = claimed()
    told = tuple(Event(kind="note", body={"n": number}) for number in range(5))
    complete_step(database, claim, Completion(result={}, end="no_progress", events=told))
    assert broken_links(database, claim.job_id) == []
    numbers = [event.seq for event in read_events(database, claim.job_id)]
    assert numbers == list(range(1, len(numbers) + 1))
    for tampering in (
        "UPDATE ledger.events SET body = '{\"n\": 7}' WHERE seq = 4",
        "UPDATE ledger.events SET at = at + interval '1 us' WHERE seq = 5",
        "DELETE FROM ledger.events WHERE seq = 6",
        "DELETE FROM ledger.events WHERE seq = (SELECT max(seq) FROM ledger.events)",
    ):
        with psycopg.connect(database.url) as connection:
            connection.execute("ALTER TABLE ledger.events DISABLE TRIGGER USER")
            connection.execute(tampering.encode())
            connection.execute("ALTER TABLE ledger.events ENABLE TRIGGER USER")
        assert broken_links(database, claim.job_id) != [], tampering


@pytest.mark.parametrize("statement", ["UPDATE ledger.events SET kind = 'x'", "DELETE FROM ledger.events"])
def test_the_database_refuses_to_change_events(
    database: Database, claimed: Callable[..., Claim], statement: str
) -> None:
    claimed()
    with psycopg.connect(database.url) as connection, pytest.raises(psycopg.Error, match="append-only"):
        connection.execute(statement.encode())


def test_one_session_leads_at_a_time(database: Database) -> None:
    lead = try_lead(database)
    assert lead is not None
    assert lead.still()
    assert try_lead(database) is None
    lead.release()
    assert not lead.still()
    successor = try_lead(database)
    assert successor is not None
    successor.release()
