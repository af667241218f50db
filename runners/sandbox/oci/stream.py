"""A running sandbox's three pipes and its channel, under the eyes of our own clock.

One loop writes the files and reads output and report, so that a sandbox that does not read can't keep us from reading
it, and looks for a reason to end it at least every 50 ms. It ends when the first process has, as its parent says, and
both pipes are empty: with the first process all others are dead, and nobody else holds the other ends.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from policy.ceilings import Limits
from runners.sandbox.backend import EngineUnavailable, SandboxBroken
from runners.sandbox.frames import Report
from runners.sandbox.oci.launcher import Channel
from runners.sandbox.output import BoundedOutput
from runners.sandbox.oversee import DRAIN_SECONDS, LOOK_SECONDS, Overseer, Why
from runners.sandbox.spec import SandboxSpec

READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20
"""What a pipe of ours holds where the kernel grants it: a small workspace is in it before anybody reads."""


@dataclass
class Pipes:
    """The sandbox's ends of the pipes for its standard streams, to be closed once it has them, and ours."""

    theirs: tuple[int, int, int]
    input: int
    output: int
    errors: int
    _open: set[int] = field(default_factory=set)

    @classmethod
    def make(cls) -> Pipes:
        """Raises EngineUnavailable when this process can have no more open files."""
        made: list[int] = []
        try:
            for _ in range(3):
                made += os.pipe2(os.O_CLOEXEC)
        except OSError as refused:
            for descriptor in made:
                os.close(descriptor)
            raise EngineUnavailable(f"no pipes for a sandbox: {refused.strerror}") from refused
        for descriptor in (made[1], made[2], made[4]):
            os.set_blocking(descriptor, False)
        with suppress(OSError):
            fcntl.fcntl(made[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return cls((made[0], made[3], made[5]), made[1], made[2], made[4], set(made))

    def close_theirs(self) -> None:
        """After that the end of each stream can be seen."""
        for descriptor in self.theirs:
            self.close_one(descriptor)

    def close_one(self, descriptor: int) -> None:
        """Close a descriptor of these, once."""
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Close all that is still open."""
        for descriptor in list(self._open):
            self.close_one(descriptor)


class Streams:
    """What goes into one sandbox and what comes out. What is to be written first is written ahead as far as the pipe
    takes it, before anybody reads."""

    def __init__(self, pipes: Pipes, channel: Channel, limits: Limits, orders: Iterable[bytes], *, last: bool) -> None:
        """`last` says that nothing is to be written after `orders`."""
        self._pipes, self._channel, self._last = pipes, channel, last
        self.output = BoundedOutput(limits.output_bytes)
        self.report = Report(None)
        self._ahead = _pieces(orders)
        self._piece = next(self._ahead, None)
        self._write()

    def expect(self, spec: SandboxSpec, mark: bytes) -> None:
        """The command is known: its output will end with `mark`."""
        self.output = BoundedOutput(spec.limits.output_bytes, mark)
        self.report.expect(spec)

    def tell(self, orders: Iterable[bytes]) -> None:
        """What is written next, after what is not written yet, and before nothing."""
        self._ahead, self._last = chain(self._ahead, _pieces(orders)), True
        self._piece = self._piece or next(self._ahead, None)
        self._write()

    def arm(self, overseer: Overseer) -> Why | None:
        """Until the first files are there or the sandbox has ended; or why it has to be ended first. Raises as `run`
        does."""
        return self._talk(overseer, until=lambda: self.report.armed)

    def run(self, overseer: Overseer) -> Why | None:
        """Until the sandbox has ended; or why it has to be ended first.

        Raises SandboxBroken for a report that is none, SandboxLost.
        """
        return self._talk(overseer, until=lambda: False)

    def _talk(self, overseer: Overseer, until: Callable[[], bool]) -> Why | None:
        with self._selector() as selector:
            while selector.get_map() and not until():
                self._turn(selector, LOOK_SECONDS)
                if why := overseer.verdict(self.report, self.output):
                    return why
        return None

    def drain(self) -> None:
        """Read what a sandbox that was just killed had still to say. It is bounded in time."""
        self._piece = None
        until = time.monotonic() + DRAIN_SECONDS
        with self._selector() as selector, suppress(SandboxBroken):
            while selector.get_map() and time.monotonic() < until:
                self._turn(selector, LOOK_SECONDS)

    def _selector(self) -> selectors.BaseSelector:
        selector = selectors.DefaultSelector()
        for descriptor in (self._pipes.output, self._pipes.errors):
            selector.register(descriptor, selectors.EVENT_READ)
        if self._piece is not None:
            selector.register(self._pipes.input, selectors.EVENT_WRITE)
        if self._channel.status is None:
            selector.register(self._channel, selectors.EVENT_READ)
        return selector

    def _turn(self, selector: selectors.BaseSelector, timeout_seconds: float) -> None:
        for key, _ in selector.select(timeout_seconds):
            if key.fileobj is self._channel:
                self._channel.receive()
                more = self._channel.status is None
            elif key.fd == self._pipes.input:
                more = self._write()
            else:
                more = self._read(key.fd)
            if not more:
                selector.unregister(key.fileobj)

    def _write(self) -> bool:
        """Whether there is more to write later. A sandbox that reads no more has ended, or will say why."""
        while self._piece is not None:
            try:
                self._piece = self._piece[os.write(self._pipes.input, self._piece) :] or next(self._ahead, None)
            except BlockingIOError:
                return True
            except BrokenPipeError:
                self._piece = None
        if self._last:
            self._pipes.close_one(self._pipes.input)
        return False

    def _read(self, descriptor: int) -> bool:
        """Take in what is there; False at the end."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        if descriptor == self._pipes.output:
            self.output.feed(data)
        else:
            self.report.feed(data)
        return bool(data)


def _pieces(files: Iterable[bytes]) -> Iterator[memoryview]:
    return (memoryview(piece) for piece in files if piece)
