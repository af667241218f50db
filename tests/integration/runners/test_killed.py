"""A worker killed at any of its crash points: the next one finishes the step, and nothing happens twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.connect import Database
from ledger.dispatch import sweep_leases
from ledger.errors import LeaseLost
from ledger.events import read_events
from ledger.reads import job_agents, job_sandboxes, job_steps
from ledger.records.budget import Budget
from ledger.sandboxes import live_sandboxes, register_sandbox
from ledger.steps import complete_step
from runners.act import act
from runners.registry import LedgerRegistry
from runners.runner import Runner, Stopped
from runners.sandbox.docker import DockerBackend
from runners.sandbox.spec import SandboxSpec
from runners.takeover import DeathNotProved
from tests.fixtures.clock import move_clock
from tests.fixtures.probes import IMAGE, good_probe
from tests.integration.runners.conftest import Play, Played

FIX = {"path": "calc/sums.py", "version": "@calc/sums.py", "old": "a - b", "new": "a + b"}
OWNER = f"killed-{os.getpid()}"
NOWHERE = "tcp://127.0.0.1:1"


def kill_at(point: str, played: Played, home: Path, engine: str = NOWHERE) -> None:
    """Lets a worker do the next step and die at `point`; then its lease is taken away."""
    command = [sys.executable, "-m", "tests.integration.runners.worker", played.database.url, str(home), engine, OWNER]
    done = subprocess.run(
        [*command, str(played.offer.step_id)],
        env={**os.environ, "PATCHYARD_CRASH_POINTS": "1", "PATCHYARD_CRASH": point},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with played.database.transaction() as connection:
        connection.execute("UPDATE ledger.steps SET lease_expires_at = ledger.now() WHERE state = 'leased'")
    sweep_leases(played.database)


def kinds(played: Played) -> list[tuple[str, str, int]]:
    return [(step.kind, step.state, step.attempt) for step in job_steps(played.database, played.job_id)]


def count(database: Database, played: Played, kind: str) -> int:
    return sum(event.kind == kind for event in read_events(database, played.job_id))


@pytest.mark.parametrize(
    "point", ["claim.after", "act.before_intent", "act.after_intent", "act.after_effect", "complete.before_commit"]
)
def test_an_edit_is_done_once(play: Play, database: Database, tmp_path: Path, point: str) -> None:
    played = play()
    base = played.job().head_tree
    played.decide("apply_patch", {"edits": [FIX]})
    kill_at(point, played, tmp_path / "killed-home")
    assert played.job().head_tree == base
    completion = played.work()
    assert completion.result["ok"] is True
    assert b"a + b" in (played.content("calc/sums.py") or b"")
    assert completion.receipt == {"before": base, "after": played.job().head_tree}
    assert count(database, played, "action_intended") == 1
    assert kinds(played)[1:] == [("act", "done", 2), ("decide", "ready", 0)]
    assert job_agents(database, played.job_id)[0].account.spent.tool_calls == 1


def test_an_edit_whose_completion_was_written_is_not_done_again(play: Play, database: Database, tmp_path: Path) -> None:
    played = play()
    played.decide("apply_patch", {"edits": [FIX]})
    kill_at("complete.after_commit", played, tmp_path / "killed-home")
    assert played.try_claim() is None
    assert kinds(played)[1:] == [("act", "done", 1), ("decide", "ready", 0)]
    assert b"a + b" in (played.content("calc/sums.py") or b"")
    assert count(database, played, "tool_result") == 1


def test_an_intent_that_led_elsewhere_is_left_to_a_person(play: Play, database: Database, tmp_path: Path) -> None:
    played = play()
    played.decide("apply_patch", {"edits": [FIX]})
    kill_at("act.after_intent", played, tmp_path / "killed-home")
    with database.transaction() as connection:
        connection.execute("UPDATE ledger.actions SET after_tree = %s", ["1" * 40])
    assert played.work().end == "effect_uncertain"
    assert (played.job().state, played.job().reason) == ("needs_attention", "effect_uncertain")


# -- sandboxes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def owned_backend(engine_host: str, sandbox_image: str, database: Database) -> Iterator[DockerBackend]:
    """A backend with the killed worker's name on its sandboxes."""
    backend = DockerBackend(engine_host, LedgerRegistry(database, "local"), owner=OWNER)
    yield backend
    left = backend.find()
    for sandbox in left:
        backend.destroy(sandbox)
    backend.close()
    assert not left


@pytest.fixture
def play_owned(play: Play, runner: Runner, owned_backend: DockerBackend, sandbox_image: str) -> Play:
    def start(**changes: Any) -> Played:
        return play(using=replace(runner, backend=owned_backend), image=sandbox_image, **changes)

    return start


@pytest.mark.engine
@pytest.mark.parametrize("point", ["after_register", "after_create", "after_start", "after_exit"])
def test_a_sandbox_that_was_left_is_dead_before_the_step_goes_on(
    play_owned: Play, owned_backend: DockerBackend, engine_host: str, database: Database, tmp_path: Path, point: str
) -> None:
    played = play_owned()
    played.decide("run_shell", {"command": "echo once >>log.txt; sleep 1"})
    kill_at(f"sandbox.{point}", played, tmp_path / "killed-home", engine_host)
    (left,) = live_sandboxes(database, job_id=played.job_id)
    found = owned_backend.find(step_id=left.step_id)
    assert len(found) == (0 if point == "after_register" else 1)
    assert played.work().result["ok"] is True
    assert live_sandboxes(database, job_id=played.job_id) == []
    assert owned_backend.find(step_id=left.step_id) == []
    rows = {row.name: row for row in job_sandboxes(database, played.job_id)}
    seen = rows[left.name].evidence["seen"]
    if found:
        assert (seen["sandbox"], seen["gone"]) == (left.name, True)
    else:
        assert seen == "not found on its engine"
    assert played.content("log.txt") == b"once\n"


@pytest.mark.engine
def test_nothing_is_verified_while_a_sandbox_of_the_job_may_live(play_owned: Play, database: Database) -> None:
    played = play_owned()
    played.decide("apply_patch", {"edits": [FIX]})
    claim = played.claim()
    completion = act(claim, played.runner)
    register_sandbox(
        database,
        step_id=claim.step_id,
        fence=claim.fence,
        name="elsewhere",
        engine_host="another",
        image=IMAGE,
        probe_id=good_probe(database),
    )
    register_sandbox(
        database,
        step_id=claim.step_id,
        fence=claim.fence,
        name="here",
        engine_host="local",
        image=IMAGE,
        probe_id=good_probe(database),
    )
    offer = complete_step(database, claim, completion)
    assert offer is not None
    played.offer = offer
    played.final()
    with pytest.raises(DeathNotProved, match="elsewhere"):
        played.work()
    assert {row.name for row in live_sandboxes(database, job_id=played.job_id)} == {"elsewhere", "here"}


@pytest.mark.engine
def test_a_job_that_must_end_ends_when_its_sandbox_is_dead(
    play_owned: Play, owned_backend: DockerBackend, engine_host: str, database: Database, tmp_path: Path
) -> None:
    played = play_owned(budget=Budget(wall_seconds=30))
    played.decide("run_shell", {"command": "sleep 600", "timeout_seconds": 3600})
    kill_at("sandbox.after_start", played, tmp_path / "killed-home", engine_host)
    assert len(owned_backend.find()) == 1
    with move_clock(database, seconds=60):
        claim = played.claim()
        assert (claim.cancelling, claim.end_with) == (True, "budget:deadline")
        assert played.work(claim).end == "budget:deadline"
    assert played.job().state == "budget_exhausted"
    assert owned_backend.find() == []


@pytest.mark.engine
def test_work_that_is_stopped_takes_its_sandbox_with_it(
    play_owned: Play, owned_backend: DockerBackend, database: Database
) -> None:
    played = play_owned()
    played.decide("run_shell", {"command": "sleep 600", "timeout_seconds": 600})
    stop = threading.Event()

    def stop_once_it_runs() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if any(row.state == "running" for row in live_sandboxes(database, job_id=played.job_id)):
                break
            time.sleep(0.2)
        time.sleep(2)
        stop.set()

    stopper = threading.Thread(target=stop_once_it_runs)
    stopper.start()
    claim = played.claim()
    with pytest.raises(Stopped) as stopped:
        act(claim, replace(played.runner, cancelled=stop))
    stopper.join()
    assert 0 < stopped.value.spent.sandbox_ms < 60_000
    assert owned_backend.find() == []
    assert live_sandboxes(database, job_id=played.job_id) == []


def test_a_sandbox_whose_lease_is_gone_is_not_begun(play: Play, database: Database) -> None:
    played = play()
    played.decide("run_shell", {"command": "true"})
    claim = played.claim()
    registry = LedgerRegistry(database, "local")
    spec = SandboxSpec(
        image=claim.job.image,
        probe_id=good_probe(database, claim.job.image),
        command=("true",),
        deadline_seconds=1,
        job_id=claim.job_id,
        step_id=claim.step_id,
        fence=claim.fence,
    )
    name = registry.register(spec)
    registry.mark(name, "created", {})
    with move_clock(database, seconds=120):
        with pytest.raises(LeaseLost):
            registry.mark(name, "created", {})
        with pytest.raises(LeaseLost):
            registry.register(spec)
    with pytest.raises(LeaseLost):
        registry.register(spec.model_copy(update={"fence": claim.fence + 1}))


# -- publication ----------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("point", ["publish.after_intent", "publish.after_effect", "complete.before_commit"])
def test_a_patch_is_published_once(play_owned: Play, database: Database, tmp_path: Path, point: str) -> None:
    played = play_owned()
    assert played.call("apply_patch", edits=[FIX]).ok
    played.final()
    assert played.work().verdict is not None
    kill_at(point, played, tmp_path / "killed-home")
    assert played.job().state == "publishing"
    played.work()
    assert (played.job().state, played.job().reason) == ("completed", "verified")
    assert count(database, played, "published") == 1
    assert count(database, played, "action_intended") == 2
