"""A running container's three streams over one connection, under the eyes of our own clock.

The engine multiplexes output and errors into frames of 8 bytes of header and a payload (Engine API, "Attach to a
container"); input goes the other way and is ended by half-closing the connection. One loop does both, so that a
sandbox that does not read can't keep us from reading it, and looks for a reason to end it at least every 50 ms.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from policy.ceilings import Limits
from runners.sandbox.backend import EngineUnavailable, SandboxBroken
from runners.sandbox.frames import Report
from runners.sandbox.output import BoundedOutput
from runners.sandbox.oversee import DRAIN_SECONDS, LOOK_SECONDS, Overseer, Why
from runners.sandbox.spec import SandboxSpec

READ_BYTES = 1 << 18
HEADER_BYTES = 8
OUTPUT, ERRORS = 1, 2


class Streams:
    """The attached connection of one container. `ended` says that no more can come from it."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection = connection
        self._pending = bytearray()
        self.ended = False
        self.output = BoundedOutput(limits.output_bytes)
        self.report = Report(None)

    def expect(self, spec: SandboxSpec, mark: bytes) -> None:
        """The command is known: its output will end with `mark`."""
        self.output = BoundedOutput(spec.limits.output_bytes, mark)
        self.report.expect(spec)

    def arm(self, orders: Iterable[bytes], overseer: Overseer) -> Why | None:
        """Write `orders`, read until the first files are there or the container has ended; or why it has to be ended.

        Raises as `run` does.
        """
        return self._talk(orders, overseer, until=lambda: self.report.armed, to_the_end=False)

    def run(self, orders: Iterable[bytes], overseer: Overseer, *, until_complete: bool = False) -> Why | None:
        """Write `orders`, read until the container has ended, or with `until_complete` until it has nothing more to
        say; or return why it has to be ended first.

        Raises EngineUnavailable when the connection breaks, SandboxBroken for a report that is none.
        """
        return self._talk(orders, overseer, until=lambda: until_complete and self.complete, to_the_end=True)

    @property
    def complete(self) -> bool:
        """Whether all of output and report has come, whatever the engine takes to close the connection."""
        return self.report.complete and self.output.complete

    def _talk(
        self, orders: Iterable[bytes], overseer: Overseer, *, until: Callable[[], bool], to_the_end: bool
    ) -> Why | None:
        self._connection.setblocking(False)
        ahead = _pieces(orders)
        piece = next(ahead, None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while not until():
                if piece is None:
                    self._no_more_input(selector, to_the_end=to_the_end)
                ready = selector.select(LOOK_SECONDS)
                events = ready[0][1] if ready else 0
                if events & selectors.EVENT_READ and not self._read():
                    self.ended = True
                    break
                if events & selectors.EVENT_WRITE and piece is not None:
                    piece = self._write(piece) or next(ahead, None)
                if why := overseer.verdict(self.report, self.output):
                    return why
        return None

    def drain(self) -> None:
        """Read what a container that was just killed had still to say. It is bounded in time, and errors end it."""
        self._connection.settimeout(LOOK_SECONDS)
        until = time.monotonic() + DRAIN_SECONDS
        try:
            while self._read():
                if time.monotonic() > until:
                    break
        except (EngineUnavailable, SandboxBroken):
            pass
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _no_more_input(self, selector: selectors.BaseSelector, *, to_the_end: bool) -> None:
        if selector.get_key(self._connection).events & selectors.EVENT_WRITE:
            selector.modify(self._connection, selectors.EVENT_READ)
            if not to_the_end:
                return
            try:
                self._connection.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the other side is gone, which reading will tell

    def _write(self, piece: memoryview) -> memoryview | None:
        """What is left of `piece`. A sandbox that reads no more has ended, or will say why."""
        try:
            return piece[self._connection.send(piece) :] or None
        except BlockingIOError:
            return piece
        except OSError:
            return None

    def _read(self) -> bool:
        """Take in what is there; False at the end."""
        try:
            data = self._connection.recv(READ_BYTES)
        except (BlockingIOError, TimeoutError):
            return True
        except OSError as lost:
            raise EngineUnavailable(f"the connection to the sandbox broke ({lost.strerror})") from lost
        self._pending += data
        self._demultiplex()
        return bool(data)

    def _demultiplex(self) -> None:
        at = 0
        pending = self._pending
        while len(pending) - at >= HEADER_BYTES:
            length = int.from_bytes(pending[at + 4 : at + 8])
            if len(pending) - at - HEADER_BYTES < length:
                break
            kind = pending[at]
            payload = bytes(memoryview(pending)[at + HEADER_BYTES : at + HEADER_BYTES + length])
            at += HEADER_BYTES + length
            if kind == OUTPUT:
                self.output.feed(payload)
            elif kind == ERRORS:
                self.report.feed(payload)
            else:
                raise SandboxBroken(f"the engine sent a stream of kind {kind}")
        del pending[:at]


def _pieces(files: Iterable[bytes]) -> Iterator[memoryview]:
    return (memoryview(piece) for piece in files if piece)
