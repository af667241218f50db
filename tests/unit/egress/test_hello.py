"""TLS greetings: the name in them, in whatever pieces they come, and no harm from what only looks like one."""

from __future__ import annotations

import itertools
import ssl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.network import Place
from runners.sandbox.egress.exchange import Refused
from runners.sandbox.egress.hello import MAX_BYTES, Gate

PLACE = Place("mirror.test", 443)


def greeting(name: str | None, **options: object) -> bytes:
    """What OpenSSL says first."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for option, value in options.items():
        setattr(context, option, value)
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


RIGHT = greeting("mirror.test")


def passed(gate: Gate, *pieces: bytes) -> bytes:
    return b"".join(gate.feed(piece) for piece in pieces)


def outcome_of(gate: Gate, pieces: list[bytes]) -> tuple[bytes, str]:
    """What passed, and with which word it was refused, if it was."""
    came = b""
    try:
        for piece in pieces:
            came += gate.feed(piece)
    except Refused as refused:
        return came, refused.outcome
    return came, ""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[first:last] for first, last in itertools.pairwise(bounds)]


@given(st.lists(st.integers(0, 5000), max_size=8))
def test_a_right_greeting_passes_whole_in_whatever_pieces(places: list[int]) -> None:
    pieces = cut(RIGHT + b"more", places)
    gate = Gate(PLACE)
    held = b""
    for piece in pieces:
        came = gate.feed(piece)
        assert not came or not held or gate.open
        held += came
    assert (held, gate.open, gate.holds) == (RIGHT + b"more", True, False)


@given(st.lists(st.integers(0, 5000), max_size=8))
def test_and_in_whatever_records(places: list[int]) -> None:
    records = b"".join(RIGHT[:3] + len(piece).to_bytes(2) + piece for piece in cut(RIGHT[5:], places) if piece)
    assert passed(Gate(PLACE), records) == records


@given(st.lists(st.integers(0, 5000), max_size=8), st.sampled_from(["other.test", "a.mirror.test", "mirror.test.evil"]))
def test_not_a_byte_of_a_wrong_one_passes(places: list[int], name: str) -> None:
    pieces, gate = cut(greeting(name), places), Gate(PLACE)
    came, outcome = outcome_of(gate, pieces)
    assert (came, outcome) == (b"", "other_name")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_of_either_version(version: ssl.TLSVersion) -> None:
    right = greeting("mirror.test", maximum_version=version)
    assert passed(Gate(PLACE), right) == right


def test_an_address_is_greeted_by_no_name() -> None:
    nameless = greeting(None)
    assert passed(Gate(Place("1.1.1.1", 443)), nameless) == nameless
    for gate, hello in ((Gate(Place("1.1.1.1", 443)), RIGHT), (Gate(PLACE), nameless)):
        with pytest.raises(Refused, match="the TLS greeting"):
            gate.feed(hello)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\x15\x03\x01", b"\x80\x2e\x01", b"\0"])
def test_what_is_no_tls_is_not_held_back(data: bytes) -> None:
    gate = Gate(PLACE)
    assert (gate.feed(b""), gate.open) == (b"", False)
    assert passed(gate, data, b"\x16\x03\x01") == data + b"\x16\x03\x01"


@given(st.binary(max_size=600))
@example(b"\x03\x01\x00\x00")
@example(b"\x03\x01\xff\xff")
@example(b"\x03\x01\x00\x04\x01\x00\x00\x00")
@example(RIGHT[1:60] + b"\xff" * 400)
def test_what_only_looks_like_a_greeting_is_refused_or_held(rest: bytes) -> None:
    gate = Gate(PLACE)
    came, outcome = outcome_of(gate, [b"\x16" + rest])
    assert came == b""
    assert outcome in ("malformed", "other_name", "hidden_name") or gate.holds


@given(st.integers(5, len(RIGHT) - 1), st.integers(0, 255))
def test_a_greeting_with_a_byte_of_another_is_refused_held_or_the_same_name(at: int, byte: int) -> None:
    changed = RIGHT[:at] + bytes((byte,)) + RIGHT[at + 1 :]
    came, _ = outcome_of(Gate(PLACE), [changed])
    assert came in (b"", changed)
    assert not came or b"\0\x00\x0bmirror.test" in changed.lower()


def test_a_greeting_without_end_is_not_kept() -> None:
    record = b"\x16\x03\x01\x40\x00"
    first = record + b"\x01\x00\xff\xf0" + bytes((1 << 14) - 4)
    tiny = b"\x16\x03\x01\x00\x01\x00" * 20_000
    for pieces in ([first] + [record + bytes(1 << 14)] * 9, [first, tiny], [b"\x16\x03\x01\x00\x04\x01\x01\x00\x00"]):
        gate = Gate(PLACE)
        assert outcome_of(gate, pieces) == (b"", "malformed")
        assert len(gate._held) <= 2 * MAX_BYTES + len(tiny)
