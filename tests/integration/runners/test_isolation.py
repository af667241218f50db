"""No command of a job runs before its sandbox is proved: the gate on a real engine and a real ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.connect import Database
from ledger.errors import IsolationUnverified
from ledger.events import read_events
from ledger.probes import find_valid_probe, latest_probes, record_probe
from ledger.reads import SandboxHistory, job_sandboxes
from ledger.records.job import Acceptance
from ledger.records.probe import Check, Probe
from ledger.sandboxes import live_sandboxes
from runners.act import act
from runners.isolation import Isolation
from runners.runner import Stopped
from runners.sandbox.docker import DockerBackend
from runners.sandbox.docker import backend as docker_backend
from runners.sandbox.docker.create import container
from runners.sandbox.probe import subject_of
from runners.sandbox.spec import SandboxSpec
from tests.fixtures.clock import move_clock
from tests.integration.runners.conftest import Play, Played
from tests.integration.runners.test_killed import kill_at, owned_backend, play_owned  # noqa: F401

pytestmark = pytest.mark.engine


def sandboxes(played: Played, purpose: str) -> list[SandboxHistory]:
    return [row for row in job_sandboxes(played.database, played.job_id) if row.purpose == purpose]


def count(database: Database) -> int:
    with database.transaction() as connection:
        row = connection.execute("SELECT count(*) AS n FROM ledger.probes").fetchone()
    assert row is not None
    return int(row["n"])


def shell(played: Played, command: str = "echo ran") -> Any:
    return played.call("run_shell", command=command)


@pytest.fixture
def weak_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is asked for the machine's own network."""

    def weaker(*arguments: Any) -> dict[str, Any]:
        body = container(*arguments)
        body["HostConfig"]["NetworkMode"] = "host"
        return body | {"NetworkDisabled": False}

    monkeypatch.setattr(docker_backend, "container", weaker)


@pytest.mark.unproved
def test_the_first_command_waits_for_the_proof_and_the_second_does_not(
    play_in_sandbox: Play, database: Database
) -> None:
    played = play_in_sandbox()
    assert shell(played).data["output_tail"] == "ran\n"
    [probe] = latest_probes(database)
    assert (probe.ok, probe.failed, probe.expired) == (True, (), False)
    assert len(probe.checks) > 80
    own = sandboxes(played, "probe")
    assert len(own) == 6
    assert {row.state for row in own} == {"removed"}
    assert {row.probe_id for row in own} == {None}
    [ran] = sandboxes(played, "job")
    assert ran.probe_id == probe.id
    [told] = [event.body for event in read_events(database, played.job_id) if event.kind == "probe"]
    assert (told["probe"], told["ok"], told["failed"]) == (probe.id, True, [])
    assert shell(played).data["output_tail"] == "ran\n"
    assert count(database) == 1
    assert len(sandboxes(played, "probe")) == 6
    assert max(completion.spent.sandbox_ms for completion in played.completions) < 1_000  # the job does not pay for it


@pytest.mark.unproved
@pytest.mark.usefixtures("weak_network")
def test_a_sandbox_that_fails_its_probe_runs_nothing_and_ends_the_job(
    play_in_sandbox: Play, database: Database
) -> None:
    played = play_in_sandbox()
    played.decide("run_shell", {"command": "echo ran"})
    completion = played.work()
    assert completion.end == "isolation_unverified"
    assert "network.interfaces" in completion.result["why"]
    assert (played.job().state, played.job().reason) == ("failed", "isolation_unverified")
    assert sandboxes(played, "job") == []
    assert live_sandboxes(database) == []
    [probe] = latest_probes(database)
    assert not probe.ok
    evidence = {check.name: check.evidence for check in probe.checks if not check.ok}
    assert "network.interfaces" in evidence
    # The next job is refused by what is known, without another probe; a minute later it would be tried again.
    another = play_in_sandbox()
    another.decide("run_shell", {"command": "echo ran"})
    assert another.work().end == "isolation_unverified"
    assert count(database) == 1
    assert sandboxes(another, "probe") == sandboxes(another, "job") == []


@pytest.mark.unproved
@pytest.mark.usefixtures("weak_network")
def test_a_base_is_not_verified_where_isolation_is_not(play_in_sandbox: Play) -> None:
    acceptance = Acceptance(command=("true",), fail_to_pass=("a::b",))
    played = play_in_sandbox(acceptance=acceptance)
    assert played.work().end == "isolation_unverified"
    assert sandboxes(played, "job") == []


def test_a_stale_probe_is_made_anew(play_in_sandbox: Play, database: Database) -> None:
    played = play_in_sandbox()
    assert shell(played).ok
    assert (count(database), sandboxes(played, "probe")) == (1, [])
    with move_clock(database, seconds=86_400):
        # The job's time is over by then, too; its next one finds the probe run out.
        later = play_in_sandbox()
        assert shell(later).ok
    assert count(database) == 2
    assert len(sandboxes(later, "probe")) == 6
    [ran] = sandboxes(later, "job")
    [newest] = latest_probes(database)
    assert ran.probe_id == newest.id


def test_a_failed_probe_is_repeated_after_a_minute(
    play_in_sandbox: Play, database: Database, prove: Callable[[Database], Probe]
) -> None:
    good = prove(database)
    played = play_in_sandbox()
    about = subject_of(played.runner.backend.facts(), good.image)
    bad = Check(name="network.routes", ok=False, evidence="a passing fault")
    record_probe(database, about, [*good.checks, bad], took_ms=1, lasts_seconds=3600)
    played.decide("run_shell", {"command": "true"})
    assert played.work().end == "isolation_unverified"
    with move_clock(database, seconds=61):
        again = play_in_sandbox()
        assert shell(again).ok
    known = find_valid_probe(database, about)
    assert known is not None
    assert known.ok


@pytest.mark.unproved
def test_workers_that_need_the_same_proof_make_it_once(
    play_in_sandbox: Play, database: Database, ledger_url: str
) -> None:
    jobs = [play_in_sandbox() for _ in range(4)]
    for number, played in enumerate(jobs):
        played.decide("run_shell", {"command": f"echo {number}"})
    claims = [played.claim() for played in jobs]
    own = [Database(ledger_url, name=f"worker-{number % 2}", pool_max=4) for number in range(4)]
    # Two processes of two threads each: one gate a process, and connections of their own.
    gates = (Isolation(), Isolation())
    runners = [
        replace(played.runner, db=own[number], isolation=gates[number % 2]) for number, played in enumerate(jobs)
    ]
    allowed: list[int] = []

    def one(number: int) -> None:
        runner = runners[number]
        allowed.append(runner.isolation.require(runner.db, runner.backend, claims[number], threading.Event()))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for opened in own:
        opened.close()
    assert len(allowed) == 4
    assert len(set(allowed)) == count(database) == 1
    assert sum(len(sandboxes(played, "probe")) for played in jobs) == 6


@pytest.mark.unproved
def test_a_stopped_job_does_not_wait_for_its_proof(play_in_sandbox: Play, database: Database) -> None:
    played = play_in_sandbox()
    played.decide("run_shell", {"command": "true"})
    claim = played.claim()
    stop = threading.Event()
    timer = threading.Timer(0.7, stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        act(claim, replace(played.runner, cancelled=stop))
    assert time.monotonic() - began < 15
    assert count(database) == 0
    assert live_sandboxes(database) == []


@pytest.mark.unproved
def test_there_is_no_way_around_the_gate(play_in_sandbox: Play, make_backend: Callable[..., DockerBackend]) -> None:
    played = play_in_sandbox()
    played.decide("run_shell", {"command": "true"})
    claim = played.claim()
    spec = SandboxSpec(
        image=claim.job.image,
        command=("true",),
        deadline_seconds=5,
        job_id=claim.job_id,
        step_id=claim.step_id,
        fence=claim.fence,
    )
    for guess in (None, 1, 4711):
        with pytest.raises(IsolationUnverified):
            played.runner.backend.run(spec.model_copy(update={"probe_id": guess}), [bytes(10_240)])
    assert played.runner.backend.find() == []
    assert job_sandboxes(played.database, played.job_id) == []


@pytest.mark.unproved
@pytest.mark.parametrize("point", ["sandbox.after_register", "sandbox.after_start", "sandbox.after_exit:4"])
def test_a_worker_that_dies_while_it_probes_leaves_nothing_and_proves_nothing(
    play_owned: Play,  # noqa: F811
    database: Database,
    tmp_path: Path,
    engine_host: str,
    point: str,
) -> None:
    played = play_owned()
    played.decide("run_shell", {"command": "echo ran"})
    kill_at(point, played, tmp_path / "killed-home", engine_host)
    assert count(database) == 0
    left = live_sandboxes(database)
    assert {row.name for row in left} <= {row.name for row in sandboxes(played, "probe")}
    assert left
    assert played.work().result["data"]["output_tail"] == "ran\n"
    assert live_sandboxes(database) == []
    assert count(database) == 1
    [ran] = sandboxes(played, "job")
    assert ran.probe_id is not None
