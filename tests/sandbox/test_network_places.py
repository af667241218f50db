"""What may be asked for: hosts and ports that were named, at addresses that are the public's, in every notation."""

from __future__ import annotations

import pytest

from runners.sandbox.egress import outlet
from tests.sandbox.networked import MAIN, Networked
from tests.sandbox.outside import NAME, Mirror

pytestmark = pytest.mark.engine

METADATA = (
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0xA9.0xFE.0xA9.0xFE",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "0xa9.254.0251.254",
    "169.254.169.254.",
    "[::ffff:169.254.169.254]",
    "[::FFFF:a9fe:a9fe]",
    "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::169.254.169.254]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:a9fe:a9fe::1]",
    "[fd00:ec2::254]",
    "[fe80::a9fe:a9fe]",
    "127.0.0.1",
    "127.1",
    "0",
    "0.0.0.0",
    "[::]",
    "[::1]",
    "10.0.0.1",
    "192.168.0.1",
    "172.16.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "192.0.2.1",
    "224.0.0.1",
    "255.255.255.255",
    "[ff02::1]",
    "[fc00::1]",
    "[2001:db8::1]",
)
NO_PLACE = (
    "user@mirror.test:80",
    "user:password@mirror.test:80",
    "mirror.test:80@169.254.169.254:80",
    "[fe80::1%25eth0]:80",
    "[fe80::1%eth0]:80",
    "::1:80",
    "mirror.test",
    "mirror.test:",
    "mirror.test:0",
    "mirror.test:65536",
    "mirror.test:+80",
    "mirror.test:http",
    "mirror.test/:80",
    "mirror.test%2e:80",
    "mirror..test:80",
    ".mirror.test:80",
    "[127.0.0.1]:80",
    "[mirror.test]:80",
    "256.1.1.1:80",
    "1.2.3.4.5:80",
    "08.1.1.1:80",
    "mirror.0x:80x",
    "xn--a:80",
    "*.test:80",
    "/etc/passwd",
    ":80",
)


def test_an_address_that_is_not_public_is_refused_in_every_notation(networked: Networked) -> None:
    code = f"seen = {{host: refusal(host + ':80') for host in {METADATA!r}}}"
    found = networked.seen(code, f"{NAME}:80", "127.0.0.1:80", "169.254.169.254:80", private=())
    assert {host: word for host, word in found.items() if word != "not_public"} == {}
    assert {outcome for _, _, outcome in networked.told()} == {"not_public"}
    assert all(one.address is None for one in networked.registry.requests)


def test_no_setting_opens_the_metadata_addresses(networked: Networked) -> None:
    hosts = ("169.254.169.254", "[fd00:ec2::254]", "168.63.129.16", "[::ffff:100.100.100.200]")
    code = f"seen = [refusal(host + ':80') for host in {hosts!r}]"
    allow = tuple(f"{host}:80" for host in ("169.254.169.254", "[fd00:ec2::254]", "168.63.129.16", "100.100.100.200"))
    found = networked.seen(code, *allow, private=("0.0.0.0/0", "::/0"))
    assert found == ["not_public"] * 4


def test_what_is_no_host_and_port_is_refused(networked: Networked) -> None:
    code = f"seen = {{target: refusal(target) for target in {NO_PLACE!r}}}"
    found = networked.seen(code, f"{NAME}:80", "*.mirror.test:80", private=("0.0.0.0/0", "::/0"))
    assert {target: word for target, word in found.items() if word != "malformed"} == {}


def test_hosts_and_ports_that_were_not_named_are_refused_and_told(networked: Networked, mirror: Mirror) -> None:
    wrong = f"{NAME}:22", f"{NAME}:{mirror.port + 1}", "another.test:80", f"sub.{NAME}:{mirror.port}"
    code = f"seen = [refusal(target) for target in {wrong!r}]"
    assert networked.seen(code, f"{NAME}:{mirror.port}") == ["not_allowed"] * 4
    assert networked.told() == [(*place, "not_allowed") for place in map(_place, wrong)]


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port)


def test_names_are_taken_for_what_they_are(networked: Networked, mirror: Mirror) -> None:
    """In upper case, with a dot at the end, and never with a part of another."""
    targets = (
        f"MIRROR.Test:{mirror.port}",
        f"{NAME}.:{mirror.port}",
        f"{NAME}:0{mirror.port}"[:16],
        f"{NAME}.evil.test:{mirror.port}",
        f"evil{NAME}:{mirror.port}",
        f"{NAME}..:{mirror.port}",
    )
    code = f"seen = [refusal(target) for target in {targets!r}]"
    found = networked.seen(code, f"{NAME}:{mirror.port}")
    assert found[:2] + found[3:] == ["granted", "granted", "not_allowed", "not_allowed", "malformed"]


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("inner.test", "not_public"),
        ("mixed.test", "not_public"),
        ("mapped.test", "not_public"),
        ("neighbour.test", "not_public"),
        ("none.test", "unresolved"),
        ("unknown.test", "unresolved"),
    ],
)
def test_a_name_that_leads_to_us_leads_nowhere(networked: Networked, mirror: Mirror, name: str, outcome: str) -> None:
    assert networked.seen(f"seen = refusal('{name}:{mirror.port}')", f"{name}:{mirror.port}") == outcome
    assert networked.told() == [(name, mirror.port, outcome)]


def test_a_name_is_looked_up_once_for_each_request_and_judged_each_time(networked: Networked, mirror: Mirror) -> None:
    """Whoever answers otherwise the second time is not asked a second time."""
    target = f"rebinding.test:{mirror.port}"
    code = f"""
first = asked(request('GET', 'http://{target}/a'))
seen = [first.splitlines()[-1], refusal('{target}'), refusal('{target}')]
"""
    assert networked.seen(code, target) == ["you asked for /a", "not_public", "not_public"]
    assert [one.address for one in networked.registry.requests] == ["127.0.0.1", None, None]


def test_an_address_of_this_machine_is_refused_though_its_kind_is_public(
    networked: Networked, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's own public address leads to its own services. Here no kind of address is special."""
    monkeypatch.setattr(outlet, "PROGRAM", f"from policy import network; network._SPECIAL = (); {MAIN}")
    code = f"seen = refusal('127.0.0.1:{mirror.port}')"
    assert networked.seen(code, f"127.0.0.1:{mirror.port}", private=()) == "own_address"
    assert networked.seen(code, f"127.0.0.1:{mirror.port}") == "granted"
