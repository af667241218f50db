"""The end of a connection: what was written arrives, and nobody is waited for without end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from runners.sandbox.egress.tunnel import both, finish

MUCH = 4_000_000


async def _writer(ours: socket.socket) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection(sock=ours)
    writer.write(bytes(MUCH))
    assert writer.transport.get_write_buffer_size() > 0
    return writer


def test_what_is_still_to_be_sent_is_sent_before_the_end() -> None:
    async def ended() -> int:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        finishing = asyncio.ensure_future(finish(await _writer(ours), 60))
        total = 0
        with theirs:
            while data := await asyncio.get_running_loop().sock_recv(theirs, 65_536):
                total += len(data)
                await asyncio.sleep(0)
        await finishing
        return total

    assert asyncio.run(ended()) == MUCH


def test_who_does_not_read_is_not_waited_for_without_end() -> None:
    async def ended() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            writer = await _writer(ours)
            await finish(writer, 0.1)
            await asyncio.sleep(0)
            assert writer.transport.is_closing()
            assert writer.transport.get_write_buffer_size() == 0

    asyncio.run(ended())


async def _fails(error: BaseException) -> None:
    raise error


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_what_one_side_raises_ends_the_other() -> None:
    with pytest.raises(ValueError, match="mine"):
        asyncio.run(both(_for_ever(), _fails(ValueError("mine"))))
    asyncio.run(both(_fails(ConnectionResetError()), _for_ever()))  # a connection that breaks is an end like any other
