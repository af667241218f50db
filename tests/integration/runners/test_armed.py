"""Armed sandboxes of jobs: used by the next command, true to its tree, in the ledger from beginning to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ledger.batches import request_cancel
from ledger.connect import Database
from ledger.probes import record_probe
from ledger.reads import SandboxHistory, job_sandboxes
from ledger.records.probe import Check
from ledger.sandboxes import live_sandboxes, renew_armed
from patchyard.reaper import reap
from runners.runner import Runner
from runners.sandbox.armoury import Armoury
from tests.fixtures.clock import move_clock
from tests.fixtures.probes import Proof
from tests.integration.runners.conftest import Play, Played

pytestmark = pytest.mark.engine

NEW = {"path": "tests/test_more.py", "version": "absent", "new": "def test_one():\n    assert True\n"}


@pytest.fixture
def arm(engine_runner: Runner, database: Database) -> Iterator[Callable[..., Runner]]:
    """Makes runners with an armoury of their own."""
    made: list[Armoury] = []

    def start(**options: float) -> Runner:
        slots = int(options.pop("slots", 2))
        about = lambda names: renew_armed(database, names, 10)  # noqa: E731
        made.append(Armoury(engine_runner.backend, slots, about, **options))  # type: ignore[arg-type]
        return replace(engine_runner, armoury=made[-1])

    yield start
    for armoury in made:
        armoury.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(played: Played) -> list[SandboxHistory]:
    return job_sandboxes(played.database, played.job_id)


def waiting(played: Played) -> bool:
    return [row.state for row in rows(played)][-1:] == ["armed"]


def test_a_command_uses_the_one_that_was_armed_with_what_has_changed_since(
    play_in_sandbox: Play, arm: Callable[..., Runner]
) -> None:
    played = play_in_sandbox(using=arm())
    assert played.call("read_file", path="README.md").ok
    until(lambda: waiting(played))
    assert played.call("apply_patch", edits=[NEW]).ok
    assert len(rows(played)) == 1
    seen = played.call("run_tests")
    assert seen.data is not None
    assert (seen.data["passed_all"], seen.data["discovered"]) == (True, 2)
    first = rows(played)[0]
    assert first.evidence["armed_by_step"] < first.step_id
    until(lambda: rows(played)[0].state == "removed")
    until(lambda: waiting(played))
    assert played.call("finish", summary="done").ok
    assert played.work().verdict is not None
    assert played.job().state == "publishing"
    until(lambda: not live_sandboxes(played.database))
    assert len(rows(played)) == 2


def test_what_a_command_leaves_is_read_back_as_ever(play_in_sandbox: Play, arm: Callable[..., Runner]) -> None:
    played = play_in_sandbox(using=arm())
    assert played.call("apply_patch", edits=[NEW]).ok
    until(lambda: waiting(played))
    assert played.call("run_shell", command="rm README.md; mkdir made; echo new > made/file; mv calc sums").ok
    assert "armed_by_step" in rows(played)[0].evidence
    assert (played.content("made/file"), played.content("README.md")) == (b"new\n", None)
    assert played.content("sums/sums.py") is not None


def test_a_cancelled_jobs_is_removed_with_proof(play_in_sandbox: Play, arm: Callable[..., Runner]) -> None:
    played = play_in_sandbox(using=arm())
    assert played.call("read_file", path="README.md").ok
    until(lambda: waiting(played))
    request_cancel(played.database, by="test", job_id=played.job_id)
    until(lambda: not live_sandboxes(played.database))
    assert rows(played)[0].evidence["inspected"] == "not found"


def test_one_that_nobody_fetches_is_removed_and_not_armed_again_at_once(
    play_in_sandbox: Play, arm: Callable[..., Runner]
) -> None:
    played = play_in_sandbox(using=arm(idle_seconds=0.1))
    assert played.call("read_file", path="README.md").ok
    until(lambda: bool(rows(played)) and rows(played)[0].state == "removed")
    assert played.call("read_file", path="README.md").ok
    assert len(rows(played)) == 1
    assert played.call("run_tests").ok
    assert len(rows(played)) == 3


def test_there_are_no_more_than_slots_and_memory_allow(play_in_sandbox: Play, arm: Callable[..., Runner]) -> None:
    runner = arm(slots=1)
    first, second = (play_in_sandbox(using=runner) for _ in range(2))
    for played in (first, second):
        assert played.call("read_file", path="README.md").ok
    assert [len(rows(played)) for played in (first, second)] == [1, 0]
    poor = play_in_sandbox(using=arm(memory=lambda: 100_000_000))
    assert poor.call("read_file", path="README.md").ok
    assert rows(poor) == []


def test_a_step_that_is_tried_again_removes_what_its_first_attempt_armed(
    play_in_sandbox: Play, arm: Callable[..., Runner], database: Database
) -> None:
    played = play_in_sandbox(using=arm())
    played.decide("read_file", {"path": "README.md"})
    first = played.claim()
    from runners.act import act

    act(first, played.runner)
    until(lambda: waiting(played))
    with database.transaction() as connection:
        connection.execute("UPDATE ledger.steps SET lease_expires_at = ledger.now() WHERE id = %s", [first.step_id])
        connection.execute("SELECT ledger.expire_step(%s, 3)", [first.step_id])
    again = played.claim()
    assert again.attempt == 2
    played.runner = replace(played.runner, armoury=None)
    played.work(again)
    assert [row.state for row in rows(played)] == ["removed"]
    assert rows(played)[0].evidence["taken_over_by"] == first.step_id


def test_the_reaper_takes_one_whose_time_is_over_and_no_other(
    play_in_sandbox: Play, arm: Callable[..., Runner], database: Database
) -> None:
    played = play_in_sandbox(using=arm())
    assert played.call("read_file", path="README.md").ok
    until(lambda: waiting(played))
    assert reap(database, played.runner.backend, "local") == 0
    with move_clock(database, seconds=120):
        assert reap(database, played.runner.backend, "local") == 1
    assert [row.state for row in rows(played)] == ["removed"]
    assert played.call("run_tests").ok  # in one that is started now
    assert rows(played)[1].state == "removed"


def test_a_probe_that_failed_since_forbids_its_use(
    play_in_sandbox: Play, arm: Callable[..., Runner], database: Database, proof: Proof
) -> None:
    played = play_in_sandbox(using=arm())
    assert played.call("read_file", path="README.md").ok
    until(lambda: waiting(played))
    bad = Check(name="network.routes", ok=False, evidence="a route")
    record_probe(database, proof[0], [bad], took_ms=1, lasts_seconds=3600)
    played.decide("run_tests", {})
    assert played.work().end == "isolation_unverified"
    until(lambda: not live_sandboxes(database))


def test_a_worker_that_ends_leaves_none(play_in_sandbox: Play, arm: Callable[..., Runner]) -> None:
    runner = arm()
    played = play_in_sandbox(using=runner)
    assert played.call("read_file", path="README.md").ok
    assert runner.armoury is not None
    runner.armoury.close()
    assert [row.state for row in rows(played)] == ["removed"]
    assert played.call("run_tests").ok
    assert len(rows(played)) == 2
