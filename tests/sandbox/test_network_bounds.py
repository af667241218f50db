"""How much a command may have of its network: connections, requests, bytes, time."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.sandbox.networked import Networked
from tests.sandbox.outside import NAME, Listener, Mirror, swallow

pytestmark = pytest.mark.engine


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
