"""The first bytes of a tunnel: whom they greet, if they are TLS.

A server behind an address that many share serves whom the greeting names. So the name in it (SNI) has to be the host
that was asked for, and nothing of the greeting goes on before that was seen. A name that is encrypted (ECH) cannot be
seen, and is refused. What is not TLS is not held back.

See RFC 8446, section 4.1.2 and 5.1, RFC 6066, section 3, and RFC 9849.
"""

from __future__ import annotations

from ledger.errors import BadInput
from policy.network import Place, read_host
from runners.sandbox.egress.exchange import Refused

MAX_BYTES = 1 << 14
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ENCRYPTED = 0, 0xFE0D
_HOST_NAME = 0
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_RECORD_BYTES = 1 << 14


class _Short(Exception):
    """A field is longer than what holds it."""


class Gate:
    """Holds back the beginning of what a command sends to `place` until it is known to be right, or no TLS."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._held = bytearray()
        self.open = False

    @property
    def holds(self) -> bool:
        """Whether a greeting has begun that is not whole."""
        return not self.open and bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """What may go on now. Raises Refused."""
        if self.open:
            return data
        self._held += data
        if not self._held:
            return b""
        if self._held[0] == _HANDSHAKE:
            hello = _hello_in(self._held)
            if hello is None:
                if len(self._held) > MAX_BYTES:
                    raise Refused("malformed", "a TLS greeting without end")
                return b""
            self._check(hello)
        self.open = True
        return bytes(self._held)

    def _check(self, hello: bytes) -> None:
        try:
            extensions = _extensions(hello)
            names = _names(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else []
        except _Short:
            raise Refused("malformed", "a TLS greeting that cannot be read") from None
        if _ENCRYPTED in extensions:
            raise Refused("hidden_name", "the TLS greeting hides whom it is for (ECH)")
        if not names and self._place.address is not None:
            return
        if not names:
            raise Refused("other_name", f"the TLS greeting names no host, and {self._place.host} was asked for")
        if len(names) > 1 or _host(names[0]) != self._place.host:
            shown = names[0].decode("ascii", "replace")[:100]
            raise Refused("other_name", f"the TLS greeting is for {shown!r}, and {self._place.host} was asked for")


def _host(name: bytes) -> str | None:
    try:
        return read_host(name.decode("ascii"))
    except (BadInput, UnicodeError):
        return None


def _hello_in(data: bytearray) -> bytes | None:
    """The ClientHello that the records begin with, None while it is not whole. Raises Refused for another message."""
    message, at = bytearray(), 0
    while len(data) - at >= _RECORD_HEAD:
        kind, major, length = data[at], data[at + 1], int.from_bytes(data[at + 3 : at + 5])
        if kind != _HANDSHAKE or major != 3 or not 0 < length <= _RECORD_BYTES:
            raise Refused("malformed", "a TLS greeting that cannot be read")
        # A record that is not whole may say enough already, but is not waited for in pieces: the next look sees it.
        message += data[at + _RECORD_HEAD : at + _RECORD_HEAD + length]
        at += _RECORD_HEAD + length
        if len(message) >= _MESSAGE_HEAD:
            if message[0] != _CLIENT_HELLO:
                raise Refused("malformed", "TLS that begins with no greeting")
            end = _MESSAGE_HEAD + int.from_bytes(message[1:_MESSAGE_HEAD])
            if end > MAX_BYTES:
                raise Refused("malformed", "a TLS greeting without end")
            if len(message) >= end:
                return bytes(message[_MESSAGE_HEAD:end])
    return None


def _extensions(hello: bytes) -> dict[int, bytes]:
    """The extensions of a ClientHello by their number; none may be there twice. Raises _Short."""
    rest = _Bytes(hello)
    rest.take(2 + 32)  # version, random
    rest.vector(1)  # session
    rest.vector(2)  # cipher suites
    rest.vector(1)  # compression
    found: dict[int, bytes] = {}
    if rest.left == 0:
        return found
    inner = _Bytes(rest.vector(2))
    if rest.left:
        raise _Short
    while inner.left:
        number = int.from_bytes(inner.take(2))
        if number in found:
            raise _Short
        found[number] = inner.vector(2)
    return found


def _names(extension: bytes) -> list[bytes]:
    """The host names of a server_name extension. Raises _Short."""
    rest = _Bytes(extension)
    inner = _Bytes(rest.vector(2))
    if rest.left:
        raise _Short
    names = []
    while inner.left:
        kind, name = inner.take(1)[0], inner.vector(2)
        if kind != _HOST_NAME:
            raise _Short
        names.append(name)
    return names


class _Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, amount: int) -> bytes:
        if amount > self.left:
            raise _Short
        self._at += amount
        return self._data[self._at - amount : self._at]

    def vector(self, length_bytes: int) -> bytes:
        """A field with its length in front."""
        return self.take(int.from_bytes(self.take(length_bytes)))
