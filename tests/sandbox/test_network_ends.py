"""How much a command may have of its network, and that it ends: with the command, the sandbox, or the worker."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ledger.errors import LeaseLost
from runners.sandbox.backend import Backend, SandboxBroken, SandboxLost
from runners.sandbox.egress import outlet, process
from runners.sandbox.spec import SandboxPlace
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.networked import MAIN, Networked, command_line, served
from tests.sandbox.outside import NAME, Listener, Mirror, swallow, until
from tests.sandbox.test_death import Workers, workers

__all__ = ["workers"]
pytestmark = pytest.mark.engine

# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_request_that_never_comes_is_not_waited_for(
    networked: Networked, mirror: Mirror, bounded: Callable[..., None]
) -> None:
    bounded(head_seconds=1.0)
    place = f"{NAME}:{mirror.port}"
    code = f"""
import time
slow = [opened() for _ in range(31)]
for one in slow:
    one.sendall(b'CONNECT {place} HT')
half = tunnel('{place}')
half.sendall(bytes((22, 3, 1, 2, 0, 1, 0)))
def drip(one):
    try:
        while True:
            one.sendall(b'X')
            time.sleep(0.1)
    except OSError:
        return 'cut'
seen = [drip(slow[0]), len(said(half)), refusal('{place}')]
"""
    assert networked.seen(code, place) == ["cut", 0, "granted"]
    outcomes = [outcome for _, _, outcome in networked.told()]
    assert outcomes.count("too_slow") == 32


def test_thousands_of_connections_harm_nobody(
    networked: Networked, mirror: Mirror, bounded: Callable[..., None]
) -> None:
    """Of what is refused so much is told, and the rest is counted; the next honest request is served."""
    bounded(refused_told=20, pause_seconds=0.0)
    place = f"{NAME}:{mirror.port}"
    code = f"""
import socket
def flood(times):
    opened, refused = 0, 0
    for _ in range(times):
        try:
            one = socket.socket()
            one.settimeout(5)
            one.connect(PROXY)
            one.sendall(request('CONNECT', 'elsewhere.test:1'))
            one.recv(10)
            one.close()
            opened += 1
        except OSError:
            refused += 1
    return opened + refused
seen = [flood(2000), refusal('{place}')]
"""
    assert networked.seen(code, place, deadline_seconds=120) == [2000, "granted"]
    outcomes = [outcome for _, _, outcome in networked.told()]
    assert outcomes == ["not_allowed"] * 20 + ["allowed"]
    assert networked.registry.left_out == 1980


def test_connections_at_once_are_bounded_and_the_rest_waits_for_its_turn(
    networked: Networked, listen: Callable[..., Listener], bounded: Callable[..., None]
) -> None:
    bounded(at_once=4)
    listener = listen()
    place = f"{NAME}:{listener.port}"
    code = f"""
import time
first = [tunnel('{place}') for _ in range(4)]
late = opened()
late.sendall(request('CONNECT', '{place}'))
late.settimeout(1)
try:
    seen = [late.recv(12).decode()]
except TimeoutError:
    seen = ['waits']
late.settimeout(30)
first[0].close()
seen.append(late.recv(12).decode())
"""
    assert networked.seen(code, place) == ["waits", "HTTP/1.1 200"]
    assert listener.accepted == 5


def test_requests_and_bytes_are_bounded(
    networked: Networked, listen: Callable[..., Listener], bounded: Callable[..., None]
) -> None:
    def pour(connection: socket.socket) -> None:
        if connection.recv(4) == b"give":
            while True:
                connection.sendall(bytes(65536))
        swallow(connection)

    bounded(approved=4, up_bytes=200_000, down_bytes=300_000)
    place = f"{NAME}:{listen(pour).port}"
    code = f"""
one = tunnel('{place}')
one.sendall(b'give')
seen = [len(said(one)) <= 300_000]
two = tunnel('{place}')
try:
    two.sendall(bytes(400_000))
    two.shutdown(1)
    seen.append(said(two).decode())
except OSError:
    seen.append('')
seen += [refusal('{place}'), refusal('{place}'), refusal('{place}')]
"""
    assert networked.seen(code, place) == [True, "", "granted", "granted", "too_many"]
    assert [outcome for _, _, outcome in networked.told()] == ["too_much", "too_much", "allowed", "allowed", "too_many"]
    assert networked.registry.requests[0].down_bytes <= 300_000
    assert networked.registry.requests[1].up_bytes <= 200_000


def test_a_tunnel_in_which_nothing_moves_is_closed(
    networked: Networked, listen: Callable[..., Listener], bounded: Callable[..., None]
) -> None:
    bounded(idle_seconds=1.0)
    place = f"{NAME}:{listen().port}"
    code = f"one = tunnel('{place}'); one.sendall(b'x'); seen = len(said(one))"
    assert networked.seen(code, place) == 0
    assert networked.told()[0][2] == "too_slow"


def test_a_server_that_is_not_there_is_told(networked: Networked, mirror: Mirror) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert networked.seen(f"seen = refusal('{NAME}:{port}')", f"{NAME}:{port}") == "unreachable"
    (one,) = networked.registry.requests
    assert (one.address, one.outcome, one.up_bytes) == ("127.0.0.1", "unreachable", 0)


# -- its end ----------------------------------------------------------------------------------------------------------


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
    class Forgetful(MemoryRegistry):
        def note_requests(self, place: SandboxPlace, requests: Any, left_out: int) -> None:
            raise LeaseLost

    networked.backend = make_backend(registry=Forgetful(f"forgetful-{os.getpid()}"))
    place = f"{NAME}:{mirror.port}"
    with pytest.raises(LeaseLost):
        networked.run(f"import sys; sys.path.insert(0, '.')\nfrom asking import *\nrefusal('{place}')", place)
    code = f"""
import sys, time; sys.path.insert(0, '.')
from asking import *
tries = 0
while True:
    refusal('{place}')
    time.sleep(0.1)
"""
    with pytest.raises(LeaseLost):  # in the middle of a command, too: it has no network from then on
        networked.run(code, place)
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
