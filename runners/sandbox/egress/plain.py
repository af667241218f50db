"""Plain HTTP: one request passed on to its server and one answer back, each parsed and written anew.

So what the two sides understand is the same, wherever the one or the other would have seen the end of a message. What
is said of the connection itself is not passed on: it is between neighbours. The server's name is the one that was
asked for, whatever the request's own Host said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import h11

from runners.sandbox.egress.dial import Stream
from runners.sandbox.egress.exchange import Exchange, Refused
from runners.sandbox.egress.request import HTTP_PORT, Asked
from runners.sandbox.egress.tunnel import both, end

_NEIGHBOURS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
     b"trailer", b"upgrade", b"expect")
)  # fmt: skip
Headers = list[tuple[bytes, bytes]]


async def pass_on(exchange: Exchange, asked: Asked, command: Stream, server: Stream) -> None:
    """The request and its answer. Raises Refused."""
    passage = _Passage(exchange, asked, command, server)
    try:
        await both(passage.up(), passage.down())
    except h11.ProtocolError as wrong:
        raise Refused("malformed", f"not HTTP: {wrong}", 502) from None


class _Passage:
    """One request on its way, and its answer."""

    def __init__(self, exchange: Exchange, asked: Asked, command: Stream, server: Stream) -> None:
        self._exchange, self._asked = exchange, asked
        self._command, self._server = command, server
        self._inner = asked.connection
        self._outer = h11.Connection(h11.CLIENT)

    async def up(self) -> None:
        """The request; it may end before its body has, if the server has answered."""
        place = self._asked.place
        named = place.host if ":" not in place.host else f"[{place.host}]"
        host = named if place.port == HTTP_PORT else str(place)
        headers: Headers = [(b"Host", host.encode()), *_passed(self._asked.request.headers, b"host")]
        request = h11.Request(
            method=self._asked.request.method, target=self._asked.target, headers=[*headers, (b"Connection", b"close")]
        )
        await self._send_up(request)
        while not isinstance(event := await self._next(self._inner, self._command[0]), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Refused("malformed", "the request was broken off", 400)
            await self._send_up(event)
        await self._send_up(h11.EndOfMessage())

    async def down(self) -> None:
        """The answer, and the end of the connection."""
        while isinstance(event := await self._next(self._outer, self._server[0]), h11.InformationalResponse):
            pass
        if not isinstance(event, h11.Response):
            raise Refused("malformed", "the server gave no answer", 502)
        headers: Headers = [*_passed(event.headers), (b"Connection", b"close")]
        await self._send_down(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
        while not isinstance(event := await self._next(self._outer, self._server[0]), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Refused("malformed", "the answer was broken off", 502)
            await self._send_down(event)
        await self._send_down(h11.EndOfMessage())
        end(self._command[1])
        raise _AllSaid

    async def _next(self, connection: h11.Connection, reader: asyncio.StreamReader) -> object:
        while (event := connection.next_event()) is h11.NEED_DATA:
            if connection is self._inner and connection.they_are_waiting_for_100_continue:
                go_on = connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                await self._exchange.send_down(self._command[1], go_on or b"")
            connection.receive_data(await self._exchange.read(reader))
        return event

    async def _send_up(self, event: h11.Event) -> None:
        if data := self._outer.send(event):
            await self._exchange.send_up(self._server[1], data)

    async def _send_down(self, event: h11.Event) -> None:
        if data := self._inner.send(event):
            await self._exchange.send_down(self._command[1], data)


class _AllSaid(OSError):
    """The answer is whole: what is left of the request is for nobody, like after a connection that broke."""


def _passed(headers: Iterable[tuple[bytes, bytes]], *left_out: bytes) -> Headers:
    """The headers that are for the other end."""
    given = list(headers)
    named = {word.strip().lower() for name, value in given if name == b"connection" for word in value.split(b",")} - {
        b"content-length",
        b"transfer-encoding",
    }
    left = _NEIGHBOURS | named | set(left_out)
    if any(name == b"transfer-encoding" for name, _ in given):
        left |= {b"content-length"}
    return [(name, value) for name, value in given if name not in left]
