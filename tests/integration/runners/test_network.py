"""A job with a network: its requests are in its history, its verifier has none, and its evidence is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.connect import Database
from ledger.errors import LeaseLost
from ledger.events import broken_links, read_events
from ledger.reads import job_sandboxes
from ledger.records.job import JobSpec, Network, Tests
from ledger.records.tool import ToolResult
from policy.network import Ceiling
from runners.registry import LedgerRegistry
from runners.runner import Runner
from runners.sandbox.armoury import Armoury
from runners.sandbox.backend import NoNetwork
from runners.sandbox.spec import NetworkRequest, SandboxPlace
from tests.integration.runners.conftest import NO_IMAGE, PYTEST, Play, Played
from tests.sandbox.networked import LOOPBACK, made_up_names, mirror
from tests.sandbox.outside import NAME, Mirror

__all__ = ["made_up_names", "mirror"]
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("made_up_names")]

FETCH = "python3 -c \"import urllib.request as u; print(u.urlopen('{url}', timeout=20).read().decode())\""
FIX = {"path": "calc/sums.py", "version": "@calc/sums.py", "old": "a - b", "new": "a + b"}
ASKS = "import urllib.request\n\n\ndef test_asks():\n    urllib.request.urlopen('{url}', timeout=20).read()\n"


@pytest.fixture
def networked(engine_runner: Runner, mirror: Mirror) -> Runner:
    """A runner of a cluster that permits the mirror."""
    return replace(engine_runner, network=Ceiling.read([f"{NAME}:{mirror.port}"], LOOPBACK))


def allowed(mirror: Mirror, **more: Any) -> Network:
    return Network(allow=(f"{NAME}:{mirror.port}",), **more)


def fetch(played: Played, url: str) -> ToolResult:
    return played.call("run_shell", command=FETCH.format(url=url))


def requests(played: Played) -> list[dict[str, Any]]:
    return [one.body for one in read_events(played.database, played.job_id) if one.kind == "network_request"]


def test_a_command_reaches_what_its_job_names_and_its_history_says_so(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror
) -> None:
    played = play_in_sandbox(using=networked, network=allowed(mirror))
    seen = fetch(played, f"http://{NAME}:{mirror.port}/x")
    assert seen.data is not None
    assert seen.data["output_tail"] == "you asked for /x\n"
    seen = fetch(played, "http://another.test/x")
    assert seen.data is not None
    assert "another.test:80 is not among what this job's network allows" in seen.data["output_tail"]
    first, second = requests(played)
    assert (first["host"], first["port"], first["address"]) == (NAME, mirror.port, "127.0.0.1")
    assert (first["outcome"], second["outcome"], second["address"]) == ("allowed", "not_allowed", None)
    assert first["up_bytes"] > 0
    assert first["down_bytes"] > 0
    (judged,) = [
        one.body
        for one in read_events(played.database, played.job_id)
        if one.kind == "policy_decision" and one.body["rule"] == "networked-command"
    ][:1]
    assert (judged["decision"], judged["risk"]) == ("allow", "high")
    assert f"reaches {NAME}:{mirror.port} and nothing else" in judged["reason"]
    assert broken_links(played.database, played.job_id) == []


def test_a_job_without_a_network_has_none_whatever_the_cluster_permits(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror
) -> None:
    played = play_in_sandbox(using=networked)
    assert fetch(played, f"http://{NAME}:{mirror.port}/x").data["exit_code"] == 1  # type: ignore[index]
    assert requests(played) == []
    assert mirror.asked == []


def asking_tests(mirror: Mirror) -> dict[str, Any]:
    return {"path": "tests/test_asks.py", "version": "absent", "new": ASKS.format(url=f"http://{NAME}:{mirror.port}/t")}


def test_tests_have_the_network_and_the_verifier_has_not(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror
) -> None:
    """What passed with a network is no evidence for the verifier, which is without."""
    played = play_in_sandbox(using=networked, network=allowed(mirror))
    assert played.call("apply_patch", edits=[FIX, asking_tests(mirror)]).ok
    assert played.call("run_tests").data["passed_all"] is True  # type: ignore[index]
    assert len(mirror.asked) == 1
    assert _evidence(played.database) == 0
    played.final()
    assert played.work().end == "verification_failed"
    assert len(mirror.asked) == 1
    assert len(requests(played)) == 1


def test_the_verifier_has_it_where_the_job_says_so_and_nobody_elses_run_will_do(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror
) -> None:
    played = play_in_sandbox(using=networked, network=allowed(mirror, verify=True))
    assert played.call("apply_patch", edits=[FIX, asking_tests(mirror)]).ok
    assert played.call("run_tests").data["passed_all"] is True  # type: ignore[index]
    played.final()
    completion = played.work()
    assert completion.end is None
    assert completion.result["candidate"]["reused"] is False
    assert len(mirror.asked) == len(requests(played)) == 2
    assert _evidence(played.database) == 0
    assert [row.state for row in job_sandboxes(played.database, played.job_id)] == ["removed"] * 2


def test_a_run_without_a_network_is_no_evidence_for_one_that_has_it(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror
) -> None:
    played = play_in_sandbox(using=networked)
    assert played.call("apply_patch", edits=[FIX]).ok
    assert played.call("run_tests").data["passed_all"] is True  # type: ignore[index]
    assert _evidence(played.database) == 1
    other = play_in_sandbox(using=networked, network=allowed(mirror, verify=True))
    assert other.call("apply_patch", edits=[FIX]).ok
    other.final()
    assert other.work().result["candidate"]["reused"] is False


def _evidence(database: Database) -> int:
    with database.transaction() as connection:
        row = connection.execute("SELECT count(*) AS runs FROM ledger.evidence").fetchone()
    assert row is not None
    return int(row["runs"])


def test_what_a_worker_permits_no_more_is_not_given(
    play_in_sandbox: Play, engine_runner: Runner, mirror: Mirror
) -> None:
    """The ceiling is asked again where the command runs. Raising it gives no job more than it has."""
    narrow = replace(engine_runner, network=Ceiling.read(["cdn.test:443"], LOOPBACK))
    played = play_in_sandbox(using=narrow, network=allowed(mirror))
    played.decide("run_shell", {"command": "true"})
    completion = played.work()
    assert completion.end == "environment_failed"
    assert completion.result["why"] == (
        f"network {NAME}:{mirror.port} is not permitted on this worker: it is beyond what jobs may ask for here; "
        "have its PATCHYARD_NETWORK_ALLOW permit it, or submit the job without"
    )
    assert job_sandboxes(played.database, played.job_id) == []
    wide = replace(engine_runner, network=Ceiling.read([f"{NAME}:{mirror.port}", "another.test:80"], LOOPBACK))
    other = play_in_sandbox(using=wide, network=allowed(mirror))
    fetch(other, "http://another.test/x")
    assert [one["outcome"] for one in requests(other)] == ["not_allowed"]


@pytest.mark.parametrize("kind", ["act", "verify"])
def test_where_none_can_be_had_the_job_ends_with_the_reason(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NoNetwork("network is not to be had with runsc: its network is its own", remedy="use runc or crun")

    monkeypatch.setattr("runners.sandbox.docker.backend.require_network", refuse)
    played = play_in_sandbox(using=networked, network=allowed(mirror, verify=True))
    if kind == "act":
        played.decide("run_tests", {})
    else:
        assert played.call("apply_patch", edits=[FIX]).ok
        played.final()
    completion = played.work()
    assert (completion.end, played.job().state) == ("environment_failed", "failed")
    assert completion.result["why"].endswith("its network is its own; use runc or crun")


def test_no_sandbox_is_started_ahead_for_it(
    play_in_sandbox: Play, networked: Runner, mirror: Mirror, database: Database
) -> None:
    armoury = Armoury(networked.backend, 2, lambda names: set())
    try:
        played = play_in_sandbox(using=replace(networked, armoury=armoury), network=allowed(mirror))
        assert played.call("read_file", path="README.md").ok
        assert job_sandboxes(database, played.job_id) == []
        assert fetch(played, f"http://{NAME}:{mirror.port}/x").data["exit_code"] == 0  # type: ignore[index]
        assert not armoury.arm(_place(played, mirror), played.job().head_tree, list)
    finally:
        armoury.close()


def _place(played: Played, mirror: Mirror) -> SandboxPlace:
    from runners.sandbox.spec import NetworkGrant

    grant = NetworkGrant(allow=(f"{NAME}:{mirror.port}",))
    return SandboxPlace(image=played.job().spec.image, job_id=played.job_id, step_id=1, fence=1, network=grant)


def test_requests_are_written_under_the_lease_and_not_without(play: Play, database: Database) -> None:
    played = play()
    claim = played.claim()
    place = SandboxPlace(image=NO_IMAGE, job_id=played.job_id, step_id=claim.step_id, fence=claim.fence)
    one = NetworkRequest(
        host="cdn.test",
        port=443,
        address="1.1.1.1",
        outcome="allowed",
        detail="",
        up_bytes=1,
        down_bytes=2,
        ms=3,
    )
    LedgerRegistry(database, "local").note_requests(place, [one, one], 7)
    events = [event for event in read_events(database, played.job_id) if event.kind.startswith("network_request")]
    assert [event.body for event in events] == [one.plain(), one.plain(), {"refused": 7}]
    assert {event.step_id for event in events} == {claim.step_id}
    with pytest.raises(LeaseLost):
        LedgerRegistry(database, "local").note_requests(place.model_copy(update={"fence": 99}), [one], 0)


def test_a_job_without_a_network_is_what_it_was(play: Play) -> None:
    """To its fingerprint, and to workers that know of no such field."""
    spec = play().job().spec
    assert "network" not in spec.plain()
    granted = spec.model_copy(update={"network": Network(allow=("cdn.test:443",))})
    assert granted.fingerprint() != spec.fingerprint()
    assert JobSpec.model_validate(granted.plain()) == granted


@pytest.mark.parametrize("using", ["engine_runner", "oci_runner"])
def test_on_each_backend(
    play: Play, using: str, mirror: Mirror, request: pytest.FixtureRequest, sandbox_image: str
) -> None:
    runner: Runner = request.getfixturevalue(using)
    runner = replace(runner, network=Ceiling.read([f"{NAME}:{mirror.port}"], LOOPBACK))
    played = play(using=runner, image=sandbox_image, network=allowed(mirror), tests=Tests(command=PYTEST))
    assert fetch(played, f"http://{NAME}:{mirror.port}/x").data["exit_code"] == 0  # type: ignore[index]
    assert [one["outcome"] for one in requests(played)] == ["allowed"]
