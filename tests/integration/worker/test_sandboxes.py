"""Sandboxes of real workers: killed with their worker, with their job, and never left behind."""

from __future__ import annotations

import time

import pytest

from ledger.batches import request_cancel
from ledger.reads import job_sandboxes
from ledger.sandboxes import live_sandboxes
from tests.integration.worker.yard import Yard, until

pytestmark = pytest.mark.engine


def _running(yard: Yard, amount: int = 1) -> bool:
    return [row.state for row in live_sandboxes(yard.db)].count("running") >= amount


def _shell(seconds: int) -> dict[str, object]:
    return {"tool": "run_shell", "args": {"command": f"sleep {seconds}; echo woke > b.txt"}}


def test_a_killed_workers_sandbox_is_proved_dead_and_the_command_run_again(
    yard: Yard, engine_host: str, sandbox_image: str
) -> None:
    yard.scheduler()
    first = yard.worker(PATCHYARD_DOCKER_HOST=engine_host)
    [ref] = yard.submit([_shell(5), {"final": "done"}], image=sandbox_image)
    until(lambda: _running(yard))
    first.kill()
    yard.worker(PATCHYARD_DOCKER_HOST=engine_host)
    yard.wait_for_end(ref, seconds=60)
    assert yard.job(ref).reason == "no_tests_ran"  # so something was changed, once
    act = yard.steps(ref)[1]
    assert (act.kind, act.attempt) == ("act", 2)
    assert live_sandboxes(yard.db) == []
    of_killed, of_other = sorted(job_sandboxes(yard.db, yard.job(ref).id), key=lambda row: row.registered_at)
    assert of_killed.state == of_other.state == "removed"
    assert {"reaped", "taken_over_by"} & of_killed.evidence.keys()
    yard.in_order(ref)


def test_a_cancelled_jobs_sandbox_is_killed_at_once(yard: Yard, engine_host: str, sandbox_image: str) -> None:
    yard.scheduler()
    yard.worker(PATCHYARD_DOCKER_HOST=engine_host)
    [ref] = yard.submit([_shell(600)], image=sandbox_image)
    until(lambda: _running(yard))
    asked_at = time.monotonic()
    request_cancel(yard.db, by="test", job_id=yard.job(ref).id)
    yard.wait_for_end(ref, seconds=60)
    assert time.monotonic() - asked_at < 60
    assert (yard.job(ref).state, yard.job(ref).reason) == ("cancelled", "cancelled_by_user")
    assert live_sandboxes(yard.db) == []
    yard.in_order(ref)


@pytest.mark.slow
def test_a_stopped_workers_sandbox_dies_and_its_step_is_given_back(
    yard: Yard, engine_host: str, sandbox_image: str
) -> None:
    yard.scheduler()
    worker = yard.worker(PATCHYARD_DOCKER_HOST=engine_host)
    [ref] = yard.submit([_shell(600)], image=sandbox_image)
    until(lambda: _running(yard))
    assert worker.stop() == 0
    assert live_sandboxes(yard.db) == []
    step = yard.steps(ref)[1]
    assert (step.state, step.attempt) == ("ready", 0)


def test_one_worker_runs_no_more_sandboxes_at_once_than_it_has_slots(
    yard: Yard, engine_host: str, sandbox_image: str
) -> None:
    yard.scheduler()
    yard.worker("decide,sandbox,publish", PATCHYARD_DOCKER_HOST=engine_host, PATCHYARD_SANDBOX_SLOTS="2")
    refs = yard.submit(*[[_shell(2)]] * 4, image=sandbox_image)
    most = 0

    def watched() -> bool:
        nonlocal most
        most = max(most, len(live_sandboxes(yard.db)))
        return yard.ended(*refs)

    until(watched, seconds=60)
    assert most == 2


def test_an_engine_that_is_away_is_no_fault_of_the_job_until_its_attempts_are_used_up(yard: Yard) -> None:
    yard.scheduler()
    yard.worker(PATCHYARD_DOCKER_HOST="tcp://127.0.0.1:1")
    [ref] = yard.submit([_shell(1)])
    until(lambda: "step_given_back" in yard.events(ref))
    assert yard.job(ref).state == "running"
