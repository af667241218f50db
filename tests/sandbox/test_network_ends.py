"""That a network ends: with its command, its sandbox, its worker, and in time; and that all of it is written down."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ledger.errors import LeaseLost
from runners.sandbox.backend import Backend, EngineUnavailable, SandboxBroken, SandboxLost
from runners.sandbox.egress import outlet, process
from runners.sandbox.egress.entrance import entrance
from runners.sandbox.spec import NetworkGrant, SandboxPlace
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import spec_of
from tests.sandbox.networked import MAIN, Networked, command_line, served
from tests.sandbox.outside import NAME, Listener, Mirror, until
from tests.sandbox.test_death import Workers, workers

__all__ = ["workers"]
pytestmark = pytest.mark.engine


def test_a_connection_ends_with_its_command(networked: Networked, listen: Callable[..., Listener]) -> None:
    """Whoever stays behind with it is killed, and the server sees the end."""
    listener = listen()
    code = f"""
import os
sent, wake = os.pipe()
if os.fork() == 0:
    os.setsid()
    one = tunnel('{NAME}:{listener.port}')
    one.sendall(b'hold')
    os.write(wake, b'x')
    while True:
        os.read(sent, 0); one.recv(1)
seen = len(os.read(sent, 1))
"""
    assert networked.seen(code, f"{NAME}:{listener.port}") == 1
    until(lambda: listener.ended == 1)
    assert networked.told() == [(NAME, listener.port, "allowed")]
    assert networked.registry.requests[0].up_bytes == 4
    assert served() == []


@pytest.mark.every_runtime
def test_the_process_that_serves_it_is_nobody_and_has_nothing(
    networked: Networked, listen: Callable[..., Listener]
) -> None:
    """It gave up root, cannot get it back, holds no file of the worker's, and knows no variable of its."""
    found: dict[str, Any] = {}

    def look(connection: socket.socket) -> None:
        (one,) = served()
        status = Path(f"/proc/{one.pid}/status").read_text()
        found["status"] = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        found["files"] = sorted(os.readlink(f"/proc/{one.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{one.pid}/fd"))
        found["environment"] = Path(f"/proc/{one.pid}/environ").read_bytes()
        found["network"] = os.readlink(f"/proc/{one.pid}/ns/net")
        connection.sendall(b"seen")

    place = f"{NAME}:{listen(look).port}"
    assert networked.seen(f"seen = said(tunnel('{place}')).decode()", place) == "seen"
    status = found["status"]
    user = str(process.UID)
    assert (status["Uid"].split(), status["Gid"].split(), status["Groups"].strip()) == ([user] * 4, [user] * 4, "")
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert found["environment"] == b""
    assert found["network"] == os.readlink("/proc/self/ns/net")
    kinds = {name.partition(":")[0] for name in found["files"]}
    assert kinds <= {"socket", "anon_inode", "/dev/null"}, found["files"]


def test_what_cannot_be_written_down_ends_the_step(
    make_backend: Callable[..., Backend], networked: Networked, mirror: Mirror
) -> None:
    asked = []

    class Forgetful(MemoryRegistry):
        def note_requests(self, place: SandboxPlace, requests: Any, left_out: int) -> None:
            asked.append(requests)
            raise LeaseLost

    networked.backend = make_backend(registry=Forgetful(f"forgetful-{os.getpid()}"))
    place = f"{NAME}:{mirror.port}"
    with pytest.raises(LeaseLost):
        networked.run(f"import sys; sys.path.insert(0, '.')\nfrom asking import *\nrefusal('{place}')", place)
    code = f"""
import sys, time; sys.path.insert(0, '.')
from asking import *
while True:
    try:
        refusal('{place}')
    except OSError:
        break
    time.sleep(0.1)
"""
    with pytest.raises(LeaseLost):  # in the middle of a command, too: it has no network from then on
        networked.run(code, place, deadline_seconds=60)
    assert len(asked) == 2
    assert served() == []


def test_requests_are_written_down_while_the_command_runs(
    networked: Networked, mirror: Mirror, listen: Callable[..., Listener]
) -> None:
    """So that little is lost when a worker dies."""
    noted: list[int] = []

    def wait(connection: socket.socket) -> None:
        until(lambda: len(networked.registry.requests) > 0)
        noted.append(len(networked.registry.requests))
        connection.sendall(b"noted")

    first, second = f"{NAME}:{mirror.port}", f"{NAME}:{listen(wait).port}"
    code = f"refusal('{first}'); seen = said(tunnel('{second}')).decode()"
    assert networked.seen(code, first, second, deadline_seconds=90) == "noted"
    assert noted == [1]
    assert len(networked.registry.requests) == 2


def test_requests_are_written_down_whatever_becomes_of_the_command(
    networked: Networked, listen: Callable[..., Listener]
) -> None:
    """Here somebody removes its sandbox from outside."""

    def remove(connection: socket.socket) -> None:
        (found,) = networked.backend.find()
        assert networked.backend.destroy(found).gone

    place = f"{NAME}:{listen(remove).port}"
    with pytest.raises((SandboxLost, EngineUnavailable)):
        networked.seen(f"said(tunnel('{place}'))\nimport time; time.sleep(60); seen = 0", place, deadline_seconds=90)
    assert [outcome for _, _, outcome in networked.told()] == ["allowed"]
    assert served() == []


def test_a_process_that_dies_is_no_network_and_no_result(networked: Networked, listen: Callable[..., Listener]) -> None:
    def kill(connection: socket.socket) -> None:
        (one,) = served()
        one.kill()

    place = f"{NAME}:{listen(kill).port}"
    with pytest.raises(SandboxLost, match="told all"):
        networked.run(f"import sys; sys.path.insert(0, '.')\nfrom asking import *\nsaid(tunnel('{place}'))", place)
    assert networked.backend.find() == []


def test_a_defect_of_the_proxys_is_no_result_and_is_named(
    networked: Networked, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of that request nobody could tell."""
    defect = "from runners.sandbox.egress import proxy; proxy.read_request = None"
    monkeypatch.setattr(outlet, "PROGRAM", f"{defect}; {MAIN}")
    with pytest.raises(SandboxLost, match=r"told all \(TypeError: 'NoneType' object is not callable\)"):
        networked.seen(f"seen = asked_head(request('CONNECT', '{NAME}:{mirror.port}'))", f"{NAME}:{mirror.port}")


@pytest.mark.parametrize("said", ['{"request": {}}', '{"request": {"host": 1}}', "nonsense", '{"left_out": "x"}'])
def test_a_process_that_says_what_it_does_not_say_is_not_believed(
    networked: Networked, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    lies = (
        "import runners.sandbox.egress.process as p, json, socket, sys, os\n"
        "async def lie(control, first, listener, asked):\n"
        f"    control.send({said.encode()!r}); control.recv(1)\n"
        "p.serve = lie; p.main()"
    )
    monkeypatch.setattr(outlet, "PROGRAM", f"exec({lies!r})")
    with pytest.raises(SandboxBroken):
        networked.run("import time; time.sleep(1)", f"{NAME}:80")
    assert served() == []


@pytest.fixture
def holder() -> Iterator[int]:
    """A process with a network namespace as a sandbox has it, which lives on whatever happens."""
    held = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up; echo ready; exec sleep 120"], stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    assert held.stdout.readline() == b"ready\n"
    yield held.pid
    held.kill()
    held.wait()
    held.stdout.close()


def opened(pid: int, seconds: float) -> outlet.Outlet:
    """A network that was opened in a namespace, for a command that may take so long."""
    spec = spec_of("sha256:" + "a" * 64, "true", network=NetworkGrant(allow=(f"{NAME}:80",)), deadline_seconds=seconds)
    made = outlet.Outlet(spec, MemoryRegistry("holder"), outlet.BOUNDS)
    with entrance(pid, lambda found: found == pid) as way:
        made.open(way)
    return made


def test_a_network_ends_when_the_worker_says_so(holder: int) -> None:
    """Though the sandbox lives on: nobody listens in it any more, and the process has told all."""
    made = opened(holder, 60)
    assert len(served()) == 1
    assert _listening(holder)
    made.end()
    assert served() == []
    assert not _listening(holder)


def test_a_network_ends_in_time_when_nobody_is_there_to_end_it(holder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "STAGE_SECONDS", 0.0)
    monkeypatch.setattr(outlet, "SPARE_SECONDS", 0.5)
    made = opened(holder, 0.5)
    until(lambda: not _listening(holder))
    made.end()
    assert served() == []


def test_the_way_into_a_sandbox_is_its_own_and_nobody_elses(holder: int) -> None:
    with pytest.raises(SandboxLost), entrance(holder, lambda _: False):
        pass
    gone = subprocess.Popen(["true"])
    while gone.poll() is None:
        time.sleep(0.01)
    with pytest.raises(SandboxLost), entrance(gone.pid, lambda _: True):
        pass


def test_a_process_that_has_ended_and_is_not_yet_buried_leads_nowhere() -> None:
    zombie = subprocess.Popen(["true"])
    until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(SandboxLost), entrance(zombie.pid, lambda _: True):
        pass
    zombie.wait()


def _listening(pid: int) -> bool:
    return any(line.split()[3:4] == ["0A"] for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines())


WORKER = f"""
import sys
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import spec_of, tar_of
from tests.sandbox.kinds import connect
from runners.sandbox.spec import NetworkGrant
kind, where, owner, image, seconds, fence = sys.argv[1:]
backend = connect(kind, where, registry=MemoryRegistry(owner), owner=owner)
print('ready', flush=True)
network = NetworkGrant(allow=('{NAME}:80',))
backend.run(spec_of(image, 'sleep', '60', deadline_seconds=float(seconds), fence=int(fence), network=network), tar_of())
"""


@pytest.fixture
def networked_workers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Workers whose command has a network."""
    monkeypatch.setattr("tests.sandbox.test_death.WORKER", WORKER)
    return workers


def _serving() -> list[int]:
    """All processes of this machine that serve a network, whoever started them."""
    return [one.pid for one in psutil.process_iter() if MAIN in " ".join(command_line(one))]


@pytest.mark.every_runtime
def test_a_worker_killed_with_the_listener_open_leaves_nothing(networked_workers: Workers) -> None:
    before = set(_serving())
    networked_workers.crashed_at("sandbox.after_listen")
    until(lambda: not set(_serving()) - before)
    networked_workers.left("exited", timeout_seconds=30)


def test_a_worker_killed_at_work_leaves_no_process_that_serves(networked_workers: Workers) -> None:
    before = set(_serving())
    worker = networked_workers.at_work()
    assert len(set(_serving()) - before) == 1
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until(lambda: not set(_serving()) - before)


def test_a_network_ends_with_its_sandbox_whatever_becomes_of_the_worker(networked_workers: Workers) -> None:
    """A worker that stands still closes nothing; the sandbox's first process is what is looked at."""
    before = set(_serving())
    worker = networked_workers.at_work(seconds=2)
    worker.send_signal(signal.SIGSTOP)
    try:
        until(lambda: not set(_serving()) - before)
    finally:
        worker.kill()
        worker.wait()
