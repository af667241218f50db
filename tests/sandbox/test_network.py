"""Network by exception: a command reaches what its job names, and nothing else, by no way but its proxy.

What runs inside is hostile: it asks the proxy in every way that there is, and tries to do without.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runners.sandbox.backend import Backend, NoNetwork
from runners.sandbox.docker import DockerBackend
from runners.sandbox.spec import NetworkGrant, NetworkRequest, SandboxPlace
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import seen, spec_of, tar_of
from tests.sandbox.kinds import OWN_KERNEL, WHOLE
from tests.sandbox.networked import Networked, served
from tests.sandbox.outside import NAME, Listener, Mirror, join

pytestmark = pytest.mark.engine

# -- what it is for ---------------------------------------------------------------------------------------------------

FETCH = """
import ssl, urllib.request
trust = ssl.create_default_context(cadata=open('/workspace/ca.pem').read())
seen = [
    urllib.request.urlopen('http://{name}:{http}/plain?a=b').read().decode(),
    urllib.request.urlopen('https://{name}:{https}/secret', context=trust).read().decode(),
]
"""


@pytest.mark.every_runtime
def test_a_command_reaches_what_its_job_names(
    networked: Networked, mirror: Mirror, tls_mirror: Mirror, both: Path
) -> None:
    code = FETCH.format(name=NAME, http=mirror.port, https=tls_mirror.port)
    allow = (f"{NAME}:{mirror.port}", f"*.test:{tls_mirror.port}", f"{NAME}:{tls_mirror.port}")
    found = networked.seen(code, *allow[:1], allow[2], files={"ca.pem": both.read_bytes()})
    assert found == ["you asked for /plain?a=b", "you asked for /secret"]
    plain, secret = networked.registry.requests
    assert (plain.host, plain.port, plain.address, plain.outcome) == (NAME, mirror.port, "127.0.0.1", "allowed")
    assert (secret.host, secret.port, secret.address, secret.outcome) == (NAME, tls_mirror.port, "127.0.0.1", "allowed")
    assert min(plain.up_bytes, plain.down_bytes, secret.up_bytes, secret.down_bytes) > 50
    assert served() == []


def test_a_name_below_an_allowed_one_is_reached_and_that_one_itself_is_not(
    networked: Networked, mirror: Mirror
) -> None:
    code = f"seen = [refusal('{{}}:{mirror.port}'.format(name)) for name in ('files.{NAME}', '{NAME}', 'x{NAME}')]"
    assert networked.seen(code, f"*.{NAME}:{mirror.port}") == ["granted", "not_allowed", "not_allowed"]


def test_a_server_that_speaks_first_is_heard(networked: Networked, listen: Callable[..., Listener]) -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"220 hello\r\n")
        connection.sendall(b"you said " + connection.recv(100))

    port = listen(greet).port
    code = f"""
one = tunnel('{NAME}:{port}')
seen = [one.recv(100).decode()]
one.sendall(b'QUIT')
seen.append(said(one).decode())
"""
    assert networked.seen(code, f"{NAME}:{port}") == ["220 hello\r\n", "you said QUIT"]


def test_what_is_sent_with_the_connect_is_not_lost_and_each_side_may_end_first(
    networked: Networked, listen: Callable[..., Listener]
) -> None:
    def count(connection: socket.socket) -> None:
        total = 0
        while data := connection.recv(65536):
            total += len(data)
        connection.sendall(b"%d" % total + b"x" * 3_000_000)

    port = listen(count).port
    code = f"""
import threading
one = opened()
one.sendall(request('CONNECT', '{NAME}:{port}') + b'y' * 1000)
threading.Thread(target=lambda: (one.sendall(b'z' * 2_000_000), one.shutdown(1))).start()
came = said(one).partition(b'\\r\\n\\r\\n')[2]
seen = [came[:7].decode(), len(came)]
"""
    assert networked.seen(code, f"{NAME}:{port}") == ["2001000", 3_000_007]
    (one,) = networked.registry.requests
    assert (one.up_bytes, one.down_bytes) == (2_001_000, 3_000_007)


def test_whoever_reads_slowly_gets_all_of_it(networked: Networked, listen: Callable[..., Listener]) -> None:
    port = listen(lambda connection: connection.sendall(bytes(20_000_000))).port
    code = f"""
import time
one, total = tunnel('{NAME}:{port}'), 0
one.shutdown(1)
while data := one.recv(65536):
    total += len(data)
    time.sleep(0.001)
seen = total
"""
    assert networked.seen(code, f"{NAME}:{port}", deadline_seconds=60) == 20_000_000


# -- there is no other way --------------------------------------------------------------------------------------------


@pytest.mark.every_runtime
def test_a_sandbox_with_a_network_has_no_interface_no_route_and_one_listener(networked: Networked) -> None:
    code = """
def lines(name):
    return [line.split() for line in open('/proc/net/' + name).read().splitlines()]
seen = {
    'interfaces': [line[0] for line in lines('dev')[2:]],
    'routes': lines('route')[1:],
    'routes6': [line[9] for line in lines('ipv6_route') if line[9] != 'lo'],
    'listeners': [line[1] for name in ('tcp', 'tcp6') for line in lines(name)[1:] if line[3] == '0A'],
}
"""
    found = networked.seen(code, f"{NAME}:80")
    assert found == {"interfaces": ["lo:"], "routes": [], "routes6": [], "listeners": ["0100007F:0C38"]}


@pytest.mark.every_runtime
def test_a_command_without_a_network_has_no_proxy_and_is_told_of_none(backend: Backend, sandbox_image: str) -> None:
    code = """
import os, socket
try:
    reached = socket.create_connection(('127.0.0.1', 3128), timeout=5)
except OSError as refused:
    reached = refused.errno
seen = [reached, [name for name in os.environ if 'proxy' in name.lower()], 'tcp' in os.listdir('/proc/net') and
        [line for line in open('/proc/net/tcp').read().splitlines()[1:] if line.split()[3] == '0A']]
"""
    refused, variables, listeners = seen(backend, sandbox_image, code)
    assert (refused, variables, listeners) == (111, [], [])


def test_without_the_proxy_nothing_is_reached(networked: Networked, mirror: Mirror) -> None:
    """Not the allowed server itself, nor this machine, a gateway, a resolver, or the metadata address."""
    mine = [address.address for found in psutil.net_if_addrs().values() for address in found if address.family == 2]
    code = f"""
import errno, socket
tried = [(host, {mirror.port}) for host in {mine!r}] + [
    ('169.254.169.254', 80), ('172.17.0.1', 2375), ('8.8.8.8', 53), ('1.1.1.1', 443), ('10.0.0.1', 22)]
seen = {{}}
for place in tried:
    try:
        socket.create_connection(place, timeout=5)
        seen[str(place)] = 'reached'
    except OSError as refused:
        seen[str(place)] = errno.errorcode.get(refused.errno, str(refused))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b'x', place)
        seen['udp ' + str(place)] = 'sent'
    except OSError as refused:
        seen['udp ' + str(place)] = errno.errorcode.get(refused.errno, str(refused))
"""
    found = networked.seen(code, f"{NAME}:{mirror.port}")
    own = {f"('127.0.0.1', {mirror.port})": "ECONNREFUSED", f"udp ('127.0.0.1', {mirror.port})": "sent"}
    assert {name: said for name, said in found.items() if said != "ENETUNREACH"} == own  # its own loopback
    assert mirror.asked == []


def test_nothing_can_be_done_to_the_proxy_from_inside(networked: Networked, mirror: Mirror) -> None:
    """Its port can be bound by nobody else, its process is not to be seen, and it is there after all of that."""
    code = f"""
import os, socket
seen = []
for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,)):
    one = socket.socket()
    for option in options:
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    for address in ('127.0.0.1', '0.0.0.0'):
        try:
            one.bind((address, 3128))
            one.listen()
            seen.append('bound')
        except OSError as refused:
            seen.append(refused.errno)
seen.append([pid for pid in os.listdir('/proc') if pid.isdigit()
             and b'egress' in open('/proc/' + pid + '/cmdline', 'rb').read().partition(b'-c')[0]])
seen.append(refusal('{NAME}:{mirror.port}'))
"""
    *bound, processes, last = networked.seen(code, f"{NAME}:{mirror.port}")
    assert (set(bound), processes, last) == ({98}, [], "granted")


# -- who cannot have one ----------------------------------------------------------------------------------------------

GRANT = NetworkGrant(allow=("cdn.test:443",))


@pytest.mark.every_runtime
@pytest.mark.parametrize("kind", OWN_KERNEL, indirect=True, scope="session")
def test_who_has_a_kernel_of_its_own_has_no_network(make_backend: Callable[..., Backend], sandbox_image: str) -> None:
    registry = MemoryRegistry(f"none-{os.getpid()}")
    backend = make_backend(registry=registry)
    with pytest.raises(NoNetwork, match=r"network cdn\.test:443 is not to be had with runsc: .*; use runc or crun"):
        backend.run(spec_of(sandbox_image, "true", network=GRANT), tar_of())
    assert registry.marks == []


@pytest.mark.parametrize("kind", WHOLE, indirect=True, scope="session")
def test_who_is_not_root_gives_no_network(
    backend: Backend, sandbox_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoNetwork, match="the worker is not root; run it as root"):
        backend.run(spec_of(sandbox_image, "true", network=GRANT), tar_of())


@pytest.mark.parametrize("kind", ["docker"], indirect=True, scope="session")
def test_an_engine_elsewhere_gives_no_network(where: str, sandbox_image: str, listen: Callable[..., Listener]) -> None:
    """Nobody here can enter a namespace there."""
    elsewhere = listen(lambda connection: join(connection, where.removeprefix("unix://")))
    backend = DockerBackend(f"tcp://127.0.0.1:{elsewhere.port}", MemoryRegistry("elsewhere"))
    try:
        with pytest.raises(NoNetwork, match="the engine is on another machine"):
            backend.run(spec_of(sandbox_image, "true", network=GRANT), tar_of())
    finally:
        backend.close()


def test_it_is_never_armed(backend: Backend, sandbox_image: str) -> None:
    place = SandboxPlace(image=sandbox_image, job_id=1, step_id=1, fence=1)
    plain = spec_of(sandbox_image, "true", job_id=1)
    granted = plain.model_copy(update={"network": GRANT})
    assert place.can_serve(plain)
    assert not place.can_serve(granted)
    assert not place.model_copy(update={"network": GRANT}).can_serve(granted)
    assert not place.model_copy(update={"network": GRANT}).can_serve(plain)


# -- the namespace ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("true", "the loopback of the sandbox is down"),
        ("ip link set lo up; ip link add v0 type veth peer name v1", "the sandbox has the interfaces lo, v0, v1"),
        ("ip link set lo up", None),
    ],
)
def test_only_a_namespace_as_it_has_to_be_is_listened_in(prepare: str, said: str | None) -> None:
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f"{prepare}; echo ready; exec sleep 60"], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        assert _listened_in(holder.pid) == said
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_this_machines_own_network_is_not_taken_for_a_sandboxs() -> None:
    assert _listened_in(os.getpid()) == "the sandbox has the network of this machine"


def _listened_in(pid: int) -> str | None:
    """Why not, said by another process: this one stays where it is."""
    code = (
        "import os, sys\nfrom runners.sandbox.egress.process import NotThere, listen_in\n"
        f"try: listen_in(os.open('/proc/{pid}/ns/net', os.O_RDONLY), ('127.0.0.1', 3128)).close()\n"
        "except NotThere as why: print(why)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip() or None


def test_requests_are_records() -> None:
    with pytest.raises(ValueError, match="outcome"):
        NetworkRequest.model_validate(
            {
                "host": "x",
                "port": 1,
                "address": None,
                "outcome": "x",
                "detail": "",
                "up_bytes": 0,
                "down_bytes": 0,
                "ms": 0,
            }
        )
