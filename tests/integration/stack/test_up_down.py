"""The stack comes up whatever happened before, keeps its data, and goes without leaving anything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from ledger.errors import Unfit
from patchyard.local import engine_choice
from patchyard.local.control import supervisor_of
from patchyard.local.engine import answers
from patchyard.local.home import Home
from patchyard.local.processes import STACK_TAG, is_alive, stack_processes
from patchyard.local.stack import RunningStack, ensure_up, stop
from patchyard.local.view import view_services
from patchyard.settings import Settings, load_settings
from runners.sandbox.oci.runtime import installed
from tests.integration.stack.conftest import eventually

Make = Callable[..., Settings]
BACKEND = "oci" if os.geteuid() == 0 and installed() else "auto"
"""What needs no engine, where that goes."""


@pytest.fixture
def settings_for() -> Iterator[Make]:
    """Settings of a stack under a home of its own, which is stopped and removed with the test."""
    folder = Path(tempfile.mkdtemp(prefix="patchyard-test-"))
    folder.chmod(0o711)

    def make(**changes: object) -> Settings:
        return load_settings(home=folder / "home", sandbox_backend=BACKEND, docker_host=None, **changes)

    yield make
    assert not stop(make())
    shutil.rmtree(folder)


def home_of(settings: Settings) -> Home:
    return Home(settings.home.resolve())


def pids_of(settings: Settings) -> dict[str, int | None]:
    return {view.service: view.pid for view in view_services(settings)}


def start(settings: Settings) -> RunningStack:
    return ensure_up(settings, wait=False)


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_data_and_urls_survive_a_stop(settings_for: Make) -> None:
    settings = settings_for()
    first = start(settings)
    assert first.started_by_us
    execute(first.database_url, "CREATE TABLE kept AS SELECT 42 AS n")
    with redis.Redis.from_url(first.broker_url) as client:
        client.set("kept", "42")
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    assert not stop(settings)
    assert stack_processes(settings.home) == []
    again = start(settings)
    assert (again.database_url, again.broker_url) == (first.database_url, first.broker_url)
    assert execute(again.database_url, "SELECT n FROM kept") == [(42,)]
    with redis.Redis.from_url(again.broker_url) as client:
        assert client.get("kept") == b"42"


def test_the_database_is_durable_and_has_the_ledger(settings_for: Make) -> None:
    url = start(settings_for()).database_url
    settings = "SELECT current_setting('fsync'), current_setting('max_connections'), current_setting('data_checksums')"
    assert execute(url, settings) == [("on", "200", "on")]
    assert execute(url, "SELECT count(*) FROM ledger.jobs") == [(0,)]


def test_up_again_leaves_the_servers_alone(settings_for: Make) -> None:
    settings = settings_for()
    start(settings)
    before = pids_of(settings)
    again = start(settings)
    assert not again.started_by_us
    after = pids_of(settings)
    for name in ("supervisor", "postgres", "valkey"):
        assert after[name] == before[name]


def test_two_at_once_start_one_stack(settings_for: Make) -> None:
    settings = settings_for()
    argv = [sys.executable, "-m", "patchyard.cli", "up", "--no-wait", "--json"]
    env = dict(os.environ) | {"PATCHYARD_HOME": str(settings.home), "PATCHYARD_SANDBOX_BACKEND": BACKEND}
    both = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    shown = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(one["started_by_us"] for one in shown) == [False, True]
    assert shown[0]["database_url"] == shown[1]["database_url"]
    leaders = [process.service for process in stack_processes(settings.home) if process.session == process.pid]
    assert leaders.count("postgres") == leaders.count("valkey") == leaders.count("supervisor") == 1


def test_a_port_that_somebody_took_is_replaced(settings_for: Make) -> None:
    settings = settings_for()
    first = start(settings)
    assert not stop(settings)
    port = int(first.database_url.rpartition(":")[2].partition("/")[0])
    with socket.create_server(("127.0.0.1", port)):
        again = start(settings)
        assert again.database_url != first.database_url
        assert execute(again.database_url, "SELECT 1") == [(1,)]


def test_servers_of_ones_own_are_used_and_none_is_started(ledger_url: str, broker_url: str, settings_for: Make) -> None:
    settings = settings_for(database_url=ledger_url, broker_url=broker_url)
    running = start(settings)
    assert (running.database_url, running.broker_url) == (ledger_url, broker_url)
    assert not {"postgres", "valkey"} & pids_of(settings).keys()
    plan = home_of(settings).run.read_plan()
    assert plan is not None
    assert {service.environment["PATCHYARD_DATABASE_URL"] for service in plan.services} == {ledger_url}


def test_a_stack_of_other_servers_is_not_taken_for_this_one(ledger_url: str, settings_for: Make) -> None:
    start(settings_for())
    own = settings_for(database_url=ledger_url)
    assert start(own).database_url == ledger_url
    assert "postgres" not in pids_of(own)
    assert "valkey" in pids_of(own)


def test_what_a_running_stack_was_not_told_is_said_in_one_line(settings_for: Make) -> None:
    start(settings_for(sandbox_slots=2))
    before, said = pids_of(settings_for()), []
    for same in (settings_for(), settings_for(sandbox_slots=2)):
        ensure_up(same, wait=False, say=said.append)
    assert said == []
    other = settings_for(sandbox_slots=3, lease_seconds=7, decide_slots=8)
    assert not ensure_up(other, wait=False, say=said.append).started_by_us
    assert said == [
        "the running stack goes on with PATCHYARD_LEASE_SECONDS=30.0, not 7.0, PATCHYARD_SANDBOX_SLOTS=2, not 3; "
        "`patchyard up` tells it"
    ]
    assert pids_of(other) == before
    ensure_up(other, apply_changes=True, wait=False, say=said.append)
    ensure_up(other, wait=False, say=said.append)
    assert len(said) == 1


def test_a_database_that_does_not_answer_is_one_line_and_nothing_is_started(settings_for: Make) -> None:
    settings = settings_for(database_url="postgresql://me:s3cret@127.0.0.1:1/x")
    with pytest.raises(Unfit) as raised:
        start(settings)
    assert "postgresql://me:********@127.0.0.1:1/x" in raised.value.message
    assert "Connection refused" in raised.value.message
    assert "PATCHYARD_DATABASE_URL" in raised.value.remedy
    assert stack_processes(settings.home) == []


def test_an_up_that_fails_says_why_and_stops_what_it_started(settings_for: Make) -> None:
    settings = settings_for()
    start(settings)
    assert not stop(settings)
    with (home_of(settings).postgres_data / "postgresql.conf").open("a") as configuration:
        configuration.write("no_such_setting = 1\n")
    with pytest.raises(Unfit) as raised:
        start(settings)
    assert "no_such_setting" in raised.value.message or "configuration file" in raised.value.message
    assert "postgres.log" in raised.value.remedy
    assert stack_processes(settings.home) == []


def test_a_cluster_of_another_version_is_refused_and_left_alone(settings_for: Make) -> None:
    settings = settings_for()
    start(settings)
    assert not stop(settings)
    version = home_of(settings).postgres_data / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(Unfit, match="is a cluster of PostgreSQL 17, not 18"):
        start(settings)
    version.write_text("18\n")
    assert execute(start(settings).database_url, "SELECT 1") == [(1,)]


def test_each_of_them_can_be_killed(settings_for: Make) -> None:
    settings = settings_for()
    url = start(settings).database_url
    execute(url, "CREATE TABLE kept AS SELECT 42 AS n")
    for service in ("postgres", "supervisor", "valkey", "standby", "postgres"):
        eventually(lambda: pids_of(settings).get(service))  # noqa: B023
        pid = pids_of(settings)[service]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pids_of(settings).get(service) not in (None, pid))  # noqa: B023
        running = start(settings)
        assert running.database_url == url
        assert execute(url, "SELECT n FROM kept") == [(42,)]
        with redis.Redis.from_url(running.broker_url) as client:
            assert client.ping()


def test_without_any_supervisor_down_finds_everything(settings_for: Make) -> None:
    settings = settings_for()
    start(settings)
    home = home_of(settings)
    supervisor = supervisor_of(home)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)
    for name in ("standby", "supervisor"):
        for process in stack_processes(home.path):
            if process.service == name:
                os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(supervisor.pid))
    assert {view.state for view in view_services(settings)} <= {"orphaned", "stopped"}
    assert not stop(settings)
    assert stack_processes(home.path, [home.postgres_data]) == []


def test_secrets_are_in_files_of_mode_0600_and_on_no_command_line(settings_for: Make) -> None:
    settings = settings_for()
    start(settings)
    home = home_of(settings)
    state = json.loads(home.state.read_text())
    for path in (home.state, home.run.plan, home.servers / "valkey" / "valkey.conf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for process in stack_processes(home.path):
        assert state["postgres_password"] not in process.command
        assert state["valkey_password"] not in process.command
    assert not list(home.servers.glob("postgres/password*"))


def test_each_service_gets_what_its_queue_needs_and_no_more(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k3y")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "k3y")
    monkeypatch.setenv("PATCHYARD_CRASH_POINTS", "1")
    monkeypatch.setenv("PATCHYARD_CRASH", "claim.after:3")
    settings = settings_for(api_token="t0ken", lease_seconds=7)
    start(settings)
    plan = home_of(settings).run.read_plan()
    assert plan is not None
    given = {service.name: service.environment for service in plan.services}
    for name in ("worker-decide", "worker-sandbox", "worker-publish", "scheduler"):
        assert not {"k3y", "t0ken"} & set(given[name].values())
        assert given[name]["PATCHYARD_CRASH"] == "claim.after:3"
        assert given[name]["PATCHYARD_LEASE_SECONDS"] == "7.0"
    assert "PATCHYARD_SANDBOX_SLOTS" not in given["worker-decide"]
    assert "PATCHYARD_SANDBOX_SLOTS" in given["worker-sandbox"]
    assert "PATCHYARD_DATABASE_URL" not in given["postgres"]
    assert STACK_TAG not in given["postgres"]


def test_down_without_a_stack_is_done_at_once(settings_for: Make) -> None:
    settings = settings_for()
    assert not stop(settings)
    assert not settings.home.exists()
    assert view_services(settings) == []


@pytest.mark.engine
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("dockerd", path="/usr/sbin:/usr/bin"), reason="no dockerd")
def test_an_engine_of_our_own_is_started_again_when_killed_and_goes_with_the_stack(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "DEFAULT_HOST", "unix:///no/system/engine.sock")
    settings = settings_for().model_copy(update={"sandbox_backend": "docker"})
    running = start(settings)
    assert running.docker_host is not None
    assert answers(running.docker_host)
    pid = pids_of(settings)["engine"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pids_of(settings).get("engine") not in (None, pid))
    assert start(settings).docker_host == running.docker_host
    assert answers(running.docker_host)
    assert not stop(settings)
    assert not Path(running.docker_host.removeprefix("unix://")).exists()
    assert str(settings.home) not in Path("/proc/self/mountinfo").read_text()
