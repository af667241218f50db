"""The proxy of one command: takes connections from its socket, one request each, within bounds, and tells of each.

It takes no more connections than it serves, and pauses between two, so that thousands wait in the kernel's short queue
and cost nothing. What it tells is queued and sent in the order in which requests ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import h11

from runners.sandbox.egress.bounds import CHUNK, Bounds
from runners.sandbox.egress.dial import Rules, Stream, reach
from runners.sandbox.egress.exchange import Exchange, Refused, Totals
from runners.sandbox.egress.hello import Gate
from runners.sandbox.egress.plain import pass_on
from runners.sandbox.egress.request import HEAD_BYTES, Asked, read_request
from runners.sandbox.egress.tunnel import cut, finish, tunnel

Tell = Callable[[dict[str, Any]], Awaitable[None]]
LOOK_UPS = 4
_LINGER_SECONDS = 1.0


class Proxy:
    """Serves a listening socket until it is cancelled; made in a running loop. `tell` is given each request, as a plain
    NetworkRequest."""

    def __init__(self, listener: socket.socket, rules: Rules, bounds: Bounds, tell: Tell) -> None:
        self._listener, self._rules, self._bounds, self._tell = listener, rules, bounds, tell
        self._totals = Totals(bounds)
        self._pool = ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="look-up")
        self._slots = asyncio.Semaphore(bounds.at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken = asyncio.get_running_loop().create_future()
        self._refused = 0

    async def serve(self) -> int:
        """Until cancelled, and then until all connections are closed and told of; how many refusals were not told.

        A defect of our own ends it too, and is raised: what became of that request nobody could tell.
        """
        self._start(self._accept())
        try:
            await self._broken
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        return max(0, self._refused - self._bounds.refused_told)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(defect)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._bounds.accepted):
            await self._slots.acquire()
            connection, _ = await loop.sock_accept(self._listener)
            self._start(self._serve(connection))
            await asyncio.sleep(self._bounds.pause_seconds)
        self._listener.close()

    async def _serve(self, connection: socket.socket) -> None:
        exchange = Exchange(self._totals)
        asked = False
        try:
            command = await asyncio.open_connection(sock=connection, limit=CHUNK)
            try:
                asked = await self._answer(exchange, command)
                await finish(command[1], self._bounds.head_seconds)
            finally:
                cut(command[1])
        except (OSError, asyncio.CancelledError):
            pass  # the command's side is gone, or all of it is to end
        finally:
            self._slots.release()
            await self._note(exchange, asked=asked or exchange.approved)

    async def _note(self, exchange: Exchange, *, asked: bool) -> None:
        """Tell of it, if anything was asked; all of what was approved, and some of what was refused."""
        if not asked:
            return
        if not exchange.approved:
            self._refused += 1
            if self._refused > self._bounds.refused_told:
                return
        await self._tell(exchange.told())

    async def _answer(self, exchange: Exchange, command: Stream) -> bool:
        """Serve one request; whether there was one."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            try:
                async with asyncio.timeout(self._bounds.head_seconds):
                    asked = await read_request(command[0], http)
            except TimeoutError:
                raise Refused("too_slow", "the request did not come in time", 408) from None
            if asked is None:
                return False
            server = await self._approved(exchange, asked)
            try:
                await self._exchange(exchange, asked, command, server)
                await finish(server[1], self._bounds.head_seconds)
            finally:
                cut(server[1])
        except Refused as refused:
            exchange.refuse(refused)
            await self._say(http, command, refused)
        return True

    async def _approved(self, exchange: Exchange, asked: Asked) -> Stream:
        """The connection to the server, if the request may have one. Raises Refused."""
        exchange.host, exchange.port = asked.place.host, asked.place.port
        self._rules.require(asked.place)
        self._totals.approve()
        exchange.approved = True
        server = await reach(exchange, asked.place, self._rules, self._pool)
        exchange.outcome = "allowed"
        return server

    async def _exchange(self, exchange: Exchange, asked: Asked, command: Stream, server: Stream) -> None:
        if not asked.is_tunnel:
            await pass_on(exchange, asked, command, server)
            return
        granted = asked.connection.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        command[1].write(granted or b"")
        await tunnel(exchange, command, server, Gate(asked.place), asked.ahead)

    async def _say(self, http: h11.Connection, command: Stream, refused: Refused) -> None:
        """The refusal as an answer, where there can be one."""
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        said = f"patchyard: {refused.detail} ({refused.outcome})"
        # Of a refused CONNECT most clients show the status line and nothing else.
        reason = "".join(letter if " " <= letter <= "~" else "?" for letter in said).encode()
        text = said.encode() + b"\n"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
        answer = h11.Response(status_code=refused.status, headers=[*headers, ("Connection", "close")], reason=reason)
        with suppress(h11.LocalProtocolError, OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                for event in (answer, h11.Data(data=text), h11.EndOfMessage()):
                    command[1].write(http.send(event) or b"")
                await command[1].drain()
                command[1].write_eof()
                while await command[0].read(CHUNK):  # what is thrown away unread would take the answer along
                    pass
