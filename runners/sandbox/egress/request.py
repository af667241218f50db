"""What a command asks the proxy for: the head of one request, of which nothing is taken on trust.

A connection carries one request. HTTP is parsed by h11, which refuses what is not HTTP and a head of more than 16 KiB.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import h11

from ledger.errors import BadInput
from policy.network import Place
from runners.sandbox.egress.exchange import Refused

HEAD_BYTES = 16_384
HTTP_PORT = 80
_PIECE = 4096
_SCHEME = b"http://"
_FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True)
class Asked:
    """A request whose head has been read: by CONNECT, or to be passed on with `target` as its path and query.

    `connection` is h11's of the command's side; `ahead` came after a CONNECT and was not HTTP.
    """

    connection: h11.Connection
    request: h11.Request
    place: Place
    target: bytes = b""
    ahead: bytes = b""

    @property
    def is_tunnel(self) -> bool:
        """Whether it is a CONNECT."""
        return bool(self.request.method == b"CONNECT")


async def read_request(reader: asyncio.StreamReader, connection: h11.Connection) -> Asked | None:
    """The request that comes, None where none comes. Raises Refused for what is none."""
    try:
        request = await _next(reader, connection)
        if request is None:
            return None
        return await _understood(reader, connection, request)
    except h11.RemoteProtocolError as wrong:
        raise Refused("malformed", f"not HTTP: {wrong}", wrong.error_status_hint) from None
    except BadInput as wrong:
        raise Refused("malformed", f"{_shown(request.target if request else b'')}: {wrong.what}", 400) from None


async def _next(reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Request | None:
    came = False
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        data = await reader.read(_PIECE)
        if not data and not came:
            return None
        came = True
        connection.receive_data(data)


async def _understood(reader: asyncio.StreamReader, connection: h11.Connection, request: h11.Request) -> Asked:
    framing = {name for name, _ in request.headers} & {*_FRAMING}
    if request.method == b"CONNECT":
        if framing:
            raise Refused("malformed", "a CONNECT has no body", 400)
        place = Place.read(request.target.decode("ascii"))
        connection.next_event()  # its end
        return Asked(connection, request, place, ahead=connection.trailing_data[0])
    if len(framing) > 1:
        raise Refused("malformed", "a request with two lengths", 400)
    if request.target[: len(_SCHEME)].lower() != _SCHEME:
        raise Refused("malformed", f"{_shown(request.target)}: a proxy is asked by CONNECT, or with http://", 400)
    authority, path = _parts(request.target[len(_SCHEME) :])
    place = Place.read(authority.decode("ascii"), port=HTTP_PORT)
    return Asked(connection, request, place, target=path)


def _parts(rest: bytes) -> tuple[bytes, bytes]:
    """The authority, and what is asked of the server. A fragment is for nobody but the client."""
    if b"#" in rest:
        raise BadInput("it has a fragment")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith(b"/") else b"/" + path


def _shown(target: bytes) -> str:
    """The host of a target: what follows it may be a secret."""
    return repr(target.removeprefix(_SCHEME).partition(b"/")[0].partition(b"?")[0].decode("ascii", "replace")[:100])
