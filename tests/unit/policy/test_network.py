"""Hosts, ports and addresses: what a text means, whoever wrote it and however."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.errors import BadInput
from policy.network import Ceiling, Pattern, Place, class_of, read_host, why_refused

ADDRESSES = st.integers(0, 2**32 - 1).map(IPv4Address)
WRITTEN = {"10": str, "8": lambda number: f"0{number:o}", "0x": hex, "0X": lambda number: f"0X{number:X}"}


@st.composite
def notations(draw: st.DrawFn) -> tuple[IPv4Address, str]:
    """An address, and one of the many ways to write it."""
    address = draw(ADDRESSES)
    parts = draw(st.integers(1, 4))
    number, numbers = int(address), []
    numbers += [number >> (24 - 8 * at) & 255 for at in range(parts - 1)]
    numbers.append(number & 256 ** (5 - parts) - 1)
    text = ".".join(WRITTEN[draw(st.sampled_from(sorted(WRITTEN)))](one) for one in numbers)
    return address, text + draw(st.sampled_from(["", "."]))


@given(notations())
@example((IPv4Address("169.254.169.254"), "0xa9fea9fe"))
@example((IPv4Address("127.0.0.1"), "127.1"))
@example((IPv4Address("127.0.0.1"), "017700000001"))
def test_an_address_is_the_same_in_every_notation(written: tuple[IPv4Address, str]) -> None:
    address, text = written
    assert read_host(text) == str(address)
    assert Place.read(f"{text}:80") == Place(str(address), 80)
    assert socket.inet_aton(text.removesuffix(".")) == address.packed  # as the C library takes it


@given(ADDRESSES)
def test_an_address_in_ipv6s_clothes_is_what_it_is(address: IPv4Address) -> None:
    mapped = IPv6Address(0xFFFF << 32 | int(address))
    assert read_host(str(mapped)) == read_host(f"::ffff:{address}") == str(address)
    assert class_of(mapped) == class_of(address)
    nat64 = IPv6Address(int(IPv6Address("64:ff9b::")) | int(address))
    assert class_of(nat64) == class_of(address)
    for prefix in ("2002:{}:{}::1", "2001:0:{}:{}::1", "64:ff9b:1::{}:{}", "::{}:{}", "::ffff:0:{}:{}"):
        halves = f"{int(address) >> 16:x}", f"{int(address) & 0xFFFF:x}"
        assert class_of(IPv6Address(prefix.format(*halves))) is not None
    isatap = IPv6Address(f"2620:0:ccc::200:5efe:{int(address) >> 16:x}:{int(address) & 0xFFFF:x}")
    assert class_of(isatap) == class_of(address)


@given(ADDRESSES)
def test_what_the_standard_library_calls_not_global_is_not_public(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert class_of(address) is not None


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_the_same_of_ipv6(address: IPv6Address) -> None:
    if not address.is_global or address.is_multicast:
        assert class_of(address) is not None
    if address not in ip_network("2000::/3") and address not in ip_network("64:ff9b::/96"):
        assert address.ipv4_mapped or class_of(address) is not None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0.0.0.0", "unspecified"), ("0.1.2.3", "unspecified"), ("::", "unspecified"),
        ("127.0.0.1", "loopback"), ("127.255.255.254", "loopback"), ("::1", "loopback"),
        ("10.0.0.1", "private"), ("172.16.0.1", "private"), ("172.31.255.255", "private"), ("192.168.1.1", "private"),
        ("fc00::1", "private"), ("fdff::1", "private"), ("fec0::1", "private"),
        ("169.254.0.1", "link-local"), ("fe80::1", "link-local"),
        ("169.254.169.254", "metadata"), ("fd00:ec2::254", "metadata"), ("168.63.129.16", "metadata"),
        ("100.100.100.200", "metadata"), ("192.0.0.192", "metadata"), ("fd20:ce::254", "metadata"),
        ("100.64.0.1", "shared"), ("100.127.255.255", "shared"),
        ("192.0.2.1", "documentation"), ("198.51.100.1", "documentation"), ("203.0.113.1", "documentation"),
        ("2001:db8::1", "documentation"), ("3fff::1", "documentation"),
        ("198.18.0.1", "benchmark"), ("198.19.255.255", "benchmark"), ("2001:2::1", "protocol"),
        ("192.0.0.1", "protocol"), ("192.88.99.1", "protocol"), ("2002:808:808::1", "protocol"),
        ("224.0.0.1", "multicast"), ("239.255.255.255", "multicast"), ("ff02::1", "multicast"),
        ("240.0.0.1", "reserved"), ("255.255.255.255", "reserved"), ("4000::1", "reserved"), ("5f00::1", "reserved"),
        ("64:ff9b::10.0.0.1", "private"), ("64:ff9b::169.254.169.254", "metadata"), ("64:ff9b:1::1", "protocol"),
        ("1.1.1.1", None), ("151.101.0.223", None), ("172.32.0.1", None), ("100.128.0.1", None), ("11.0.0.1", None),
        ("2606:4700::1", None), ("2a04:4e42::223", None), ("64:ff9b::8.8.8.8", None), ("2620:0:ccc::2", None),
    ],
)  # fmt: skip
def test_each_kind_of_address_has_its_word(text: str, word: str | None) -> None:
    assert class_of(ip_address(text)) == word


def test_a_permitted_range_permits_that_range_and_nothing_of_what_nobody_may() -> None:
    ten = (ip_network("10.1.2.0/24"),)
    assert why_refused(ip_address("10.1.2.3"), ten) is None
    assert why_refused(ip_address("::ffff:10.1.2.3"), ten) is None
    assert why_refused(ip_address("10.1.3.3"), ten) == "private"
    everything = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    never = "169.254.169.254", "169.254.0.1", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::", "168.63.129.16"
    assert all(why_refused(ip_address(text), everything) for text in never)
    assert why_refused(ip_address("127.0.0.1"), everything) is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Cdn.test", "cdn.test"),
        ("cdn.test.", "cdn.test"),
        ("a", "a"),
        ("localhost", "localhost"),
        ("Bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("ｃｄｎ．ｔｅｓｔ", "cdn.test"),
        ("cdn。test", "cdn.test"),
        ("１２７.0.0.1", "127.0.0.1"),
        ("①②⑦.1", "127.0.0.1"),
        ("0ｘ7f.1", "127.0.0.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("256", "0.0.1.0"),
        ("1.2.3.", "1.2.0.3"),
        ("0x", "0.0.0.0"),
        ("0xg", "0xg"),
        ("r3---sn-abc.example.org", "r3---sn-abc.example.org"),
    ],
)
def test_a_host_has_one_form(text: str, host: str) -> None:
    assert read_host(text) == host
    assert read_host(host) == host


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a..b", ".a", "a b", " a", "a ", "a\n", "a\t.b", "a/b", "a\\b", "a?b", "a#b", "a@b", "u:p@a",
        "a%2eb", "a%00", "a\0", "a_b", "-a", "a-", "a" * 64, "a." * 127 + "aa", "xn--a", "xn--\u00fc", "1.2.3.256",
        "1.2.3.4.5", "4294967296", "1.2.3..", "08", "1.2.08", "1..2", "a.1", "a.0x1", "[a]", "::1%lo", "::1%25lo",
        "fe80::1%eth0", ":::", "1::2::3", "12345::", "::ffff:1.2.3", "*.a", "*", "a*", "\u202e.org", "ö" * 70,
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_host(text)


@given(st.text(max_size=40))
@example("xn--")
@example("xn--a-\udc80")
@example("\ud800.org")
@example("1" * 400)
def test_whatever_is_written_is_a_host_or_refused(text: str) -> None:
    try:
        host = read_host(text)
    except BadInput:
        return
    assert host.isascii()
    assert read_host(host) == host
    assert not set(host) & set(" /\\@?#%[]\n\r\0")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cdn.test:443", Place("cdn.test", 443)),
        ("[::1]:80", Place("::1", 80)),
        ("[::FFFF:7f00:1]:80", Place("127.0.0.1", 80)),
        ("2130706433:00080", Place("127.0.0.1", 80)),
    ],
)
def test_a_place_is_a_host_and_a_port(text: str, place: Place) -> None:
    assert Place.read(text) == place
    assert Place.read(str(place)) == place


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cdn.test", "it has no port"),
        ("cdn.test:", "it has no port"),
        ("cdn.test:0", "its port is no number"),
        ("cdn.test:65536", "its port is no number"),
        ("cdn.test:-1", "its port is no number"),
        ("cdn.test:4 43", "its port is no number"),
        ("cdn.test:٤٤٣", "its port is no number"),
        ("cdn.test:https", "its port is no number"),
        ("a:b:443", "it has several colons"),
        ("::1:443", "it has several colons"),
        ("[::1]443", "only an IPv6 address is put in brackets"),
        ("[127.0.0.1]:80", "only an IPv6 address is put in brackets"),
        ("[::1%lo]:80", "an address with a zone"),
        ("https://cdn.test:443", "it has several colons"),
        ("https://cdn.test", "its port is no number"),
    ],
)
def test_what_is_no_place_says_why(text: str, said: str) -> None:
    with pytest.raises(BadInput) as raised:
        Place.read(text)
    assert raised.value.message.startswith(said)
    assert raised.value.remedy


def test_a_port_may_be_given_where_none_is_written() -> None:
    assert Place.read("cdn.test", port=80) == Place("cdn.test", 80)
    assert Place.read("cdn.test:81", port=80) == Place("cdn.test", 81)


PATTERNS = ["a.test:1", "b.test:1", "*.a.test:1", "*.x.a.test:1", "x.a.test:1", "y.x.a.test:1", "a.test:2", "1.1.1.1:1"]


@pytest.mark.parametrize("wide", PATTERNS)
@pytest.mark.parametrize("narrow", PATTERNS)
def test_a_pattern_covers_another_if_it_allows_all_that_the_other_does(wide: str, narrow: str) -> None:
    places = [Place.read(one.removeprefix("*.")) for one in PATTERNS] + [Place.read("new.x.a.test:1"), Place("z", 1)]
    outer, inner = Pattern.read(wide), Pattern.read(narrow)
    assert outer.covers(inner) == all(outer.allows(place) for place in places if inner.allows(place))


@pytest.mark.parametrize(
    "text", ["*:443", "*.:443", "*.org:443", "*.*.org:443", "a.*.org:443", "*a.org:443", "*.1.1.1.1:80"]
)
def test_a_star_stands_for_names_below_one(text: str) -> None:
    with pytest.raises(BadInput):
        Pattern.read(text)


def test_a_ceiling_permits_what_it_covers_in_its_canonical_form() -> None:
    ceiling = Ceiling.read(["Cdn.test:443", "*.example.org:443", "10.1.2.3:80", "[2606:4700::1]:443"], ["10.1.2.0/24"])
    for text, canonical in {
        "cdn.TEST.:0443": "cdn.test:443",
        "a.Example.org:443": "a.example.org:443",
        "*.b.example.org:443": "*.b.example.org:443",
        "0xa010203:80": "10.1.2.3:80",
        "[2606:4700:0::1]:443": "[2606:4700::1]:443",
    }.items():
        assert ceiling.permit(text) == canonical
    for text, said in {
        "cdn.test:80": "it is beyond what jobs may ask for here; remove it, or have PATCHYARD_NETWORK_ALLOW permit it",
        "example.org:443": "it is beyond",
        "*.org:443": "it stands for all of a top-level domain",
        "10.1.3.3:80": "its address is not public (private); remove it, or have PATCHYARD_NETWORK_PRIVATE permit its",
        "169.254.169.254:80": "its address is not public (metadata); remove it; no setting permits it",
    }.items():
        with pytest.raises(BadInput) as raised:
            ceiling.permit(text)
        assert raised.value.message.startswith(said)
    with pytest.raises(BadInput, match="jobs have no network here"):
        Ceiling().permit("cdn.test:443")


@pytest.mark.parametrize("text", ["10.1.2.3/24", "10.0.0.0/33", "ten", "", "::ffff:10.0.0.0/104"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"range|clothes"):
        Ceiling.read([], [text])
