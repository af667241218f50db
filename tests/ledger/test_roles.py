"""Each kind of service has a database role with the least that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from ledger.batches import request_cancel, submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs, ready_offers, sweep_leases, try_lead
from ledger.evidence import find_evidence, record_evidence
from ledger.objects import ObjectMissing, get_object, put_object
from ledger.reads import batch_progress, find_job, iter_results
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec
from ledger.records.step import Completion, NextStep, Queue
from ledger.records.verdict import TestRun
from ledger.sandboxes import live_sandboxes, mark_sandbox, register_sandbox
from ledger.steps import claim_step, complete_step, give_back, renew_leases
from tests.fixtures.probes import IMAGE, good_probe
from tests.ledger.conftest import job_spec, nothing

As = Callable[[str], Database]
KINDS = ("scheduler", "decide", "sandbox", "publish", "api", "exporter")


@pytest.fixture
def as_service(database: Database) -> Iterator[As]:
    """Opens the ledger as a login that has the role of one kind of service."""
    opened: list[Database] = []

    def open_as(kind: str) -> Database:
        login = f"login_{kind}"
        with psycopg.connect(database.url, autocommit=True) as connection:
            if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [login]).fetchall():
                connection.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE patchyard_{kind}".encode())
        parts = urlsplit(database.url)
        place = f"{login}:x@{parts.hostname}:{parts.port}"
        opened.append(Database(urlunsplit(parts._replace(netloc=place))))
        return opened[-1]

    yield open_as
    for one in opened:
        one.close()


def ready_step(database: Database, kind: str) -> int:
    """A ready step of that kind, the third of its job."""
    submit_batch(database, BatchSpec(name=f"b-{kind}"), [job_spec()])
    (offer,) = admit_jobs(database, capacity=10)
    first = claim_step(database, offer.step_id, owner="w", lease_seconds=60, estimate=nothing)
    assert first is not None
    following = complete_step(
        database,
        first,
        Completion.model_validate(
            {"result": {"said": "secret"}, "next": {"kind": kind}, "model_state": {"position": 1}}
        ),
    )
    assert following is not None
    return following.step_id


@pytest.mark.parametrize("kind", ["decide", "sandbox", "publish"])
def test_a_worker_takes_steps_of_its_own_queue_only(database: Database, as_service: As, kind: Queue) -> None:
    worker = as_service(kind)
    for step_kind, queue in (("decide", "decide"), ("act", "sandbox"), ("publish", "publish")):
        step = ready_step(database, step_kind)
        claim = claim_step(worker, step, owner="w", lease_seconds=60, estimate=lambda _claim: Amounts(steps=1))
        assert (claim is not None) == (queue == kind)
        if claim is None:
            continue
        assert claim.model_state == ({"position": 1} if kind == "decide" else {})
        assert renew_leases(worker, [(claim.step_id, claim.fence)], 60) == {claim.step_id: "kept"}
        give_back(worker, claim, why="busy", delay_seconds=0)
        give_back(worker, claim, why="busy", delay_seconds=0)
        again = claim_step(worker, step, owner="w", lease_seconds=60, estimate=nothing)
        assert again is not None
        done = Completion(result={}, next=NextStep(kind="decide"))
        assert complete_step(worker, again, done) == complete_step(worker, again, done)


def test_a_sandbox_worker_does_all_its_work_and_reads_nothing_of_models(database: Database, as_service: As) -> None:
    worker = as_service("sandbox")
    claim = claim_step(worker, ready_step(database, "act"), owner="w", lease_seconds=60, estimate=nothing)
    assert claim is not None
    probe_id = good_probe(worker)
    register_sandbox(
        worker, step_id=claim.step_id, fence=claim.fence, name="s", engine_host="h", image=IMAGE, probe_id=probe_id
    )
    mark_sandbox(worker, "s", "removed", {"seen": "gone"})
    assert live_sandboxes(worker) == []
    run = TestRun(evidence_key="k", tree="t", exit_code=0, ended="exited", output_truncated=False, report="ok")
    record_evidence(worker, claim, run)
    assert find_evidence(worker, "k") is not None
    assert get_object(worker, put_object(worker, "output", b"out")) == b"out"
    replay = put_object(database, "replay", b'{"final": "x"}')
    with pytest.raises(ObjectMissing):
        get_object(worker, replay)
    assert get_object(as_service("decide"), replay) == b'{"final": "x"}'


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "attempt",
    [
        "UPDATE ledger.jobs SET state = 'completed'",
        "UPDATE ledger.accounts SET free = granted",
        "UPDATE ledger.steps SET fence = fence + 1",
        "DELETE FROM ledger.events",
        "SELECT ledger.end_job(1, 'verified')",
        "SELECT ledger.settle(1, ledger.zero(), ledger.zero())",
        "SELECT ledger.append_event(1, 'x', NULL, NULL, '{}')",
        "ALTER TABLE ledger.events DISABLE TRIGGER ALL",
        "CREATE TABLE ledger.mine (x int)",
    ],
)
def test_no_service_reaches_behind_the_entries(as_service: As, kind: str, attempt: str) -> None:
    with (
        psycopg.connect(as_service(kind).url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(attempt.encode())


@pytest.mark.parametrize("kind", ["sandbox", "publish", "scheduler", "exporter"])
@pytest.mark.parametrize("column", ["input", "result"])
def test_what_models_said_is_not_readable_to(as_service: As, kind: str, column: str) -> None:
    with (
        psycopg.connect(as_service(kind).url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(f"SELECT {column} FROM ledger.steps".encode())  # noqa: S608


def test_the_scheduler_and_the_api_can_do_their_work(database: Database, as_service: As) -> None:
    api, scheduler = as_service("api"), as_service("scheduler")
    batch = submit_batch(api, BatchSpec(name="by-api"), [job_spec("a"), job_spec("b")])
    lead = try_lead(scheduler)
    assert lead is not None
    assert len(admit_jobs(scheduler, capacity=10)) == 2
    assert len(ready_offers(scheduler, limit=10, stale_seconds=0)) == 2
    assert sweep_leases(scheduler).expired == 0
    lead.release()
    assert find_job(api, "by-api/a").state == "queued"
    assert len(list(iter_results(api, batch.batch_id))) == 2
    assert batch_progress(api, batch.batch_id).total == 2
    assert request_cancel(api, by="me", batch_id=batch.batch_id).cancelled == 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sandbox"])
def test_only_sandbox_workers_write_down_probes(database: Database, as_service: As, kind: str) -> None:
    probe_id = good_probe(as_service("sandbox"))
    with (
        psycopg.connect(as_service(kind).url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(
            b"SELECT ledger.record_probe('s', 'i', 'b', 'r', '{}', '[{\"ok\": true}]', 1, '1 day', '1 day')"
        )
    with psycopg.connect(as_service("sandbox").url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("UPDATE ledger.probes SET expires_at = 'infinity' WHERE id = %s", [probe_id])
