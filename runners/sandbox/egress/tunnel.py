"""A CONNECT that was granted: bytes pass in both directions until both have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from runners.sandbox.egress.dial import Stream
from runners.sandbox.egress.exchange import Exchange, Refused
from runners.sandbox.egress.hello import Gate


async def tunnel(exchange: Exchange, command: Stream, server: Stream, gate: Gate, ahead: bytes) -> None:
    """Until both sides have said all, or one is gone. `ahead` is what the command has sent already. Raises Refused."""
    await both(_up(exchange, command[0], server[1], gate, ahead), _down(exchange, server[0], command[1]))


async def both(first: Awaitable[None], second: Awaitable[None]) -> None:
    """Run both to their ends. What one of them raises ends the other; a connection that breaks ends both."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException) and not isinstance(error, OSError | asyncio.CancelledError):
            raise error


async def _up(
    exchange: Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: Gate, ahead: bytes
) -> None:
    data = ahead or await exchange.read(reader)
    try:
        async with asyncio.timeout(exchange.totals.bounds.head_seconds):
            while data and not (passed := gate.feed(data)):
                data = await exchange.read(reader)
    except TimeoutError:
        raise Refused("too_slow", "the TLS greeting did not come in time") from None
    if gate.holds:
        raise Refused("malformed", "a TLS greeting that was broken off")
    while data:
        await exchange.send_up(writer, passed)
        data = passed = await exchange.read(reader)
    end(writer)


async def _down(exchange: Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await exchange.read(reader):
        await exchange.send_down(writer, data)
    end(writer)


def end(writer: asyncio.StreamWriter) -> None:
    """Say that nothing more comes in this direction."""
    with suppress(OSError):
        writer.write_eof()


async def finish(writer: asyncio.StreamWriter, seconds: float) -> None:
    """Close a connection once the other side has what was written, if it takes that in time."""
    with suppress(OSError):
        writer.close()
        try:
            async with asyncio.timeout(seconds):
                await writer.wait_closed()
        finally:
            cut(writer)


def cut(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, whatever was still to be sent. One that is closed already stays so."""
    with suppress(AttributeError):  # asyncio's transport lets go of its loop when it has sent its last, and needs it
        writer.transport.abort()
