"""One request and what has come of it, and what all requests of a command have taken together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from runners.sandbox.egress.bounds import CHUNK, Bounds

MAX_DETAIL = 200


class Refused(Exception):
    """It goes no further. `outcome` is a word of `runners.sandbox.spec.NetworkOutcome`, `status` HTTP's."""

    def __init__(self, outcome: str, detail: str, status: int = 403) -> None:
        super().__init__(detail)
        self.outcome, self.detail, self.status = outcome, detail, status


@dataclass
class Totals:
    """Of one command."""

    bounds: Bounds
    approved: int = 0
    up_bytes: int = 0
    down_bytes: int = 0

    def approve(self) -> None:
        """One more request goes to a place that is allowed. Raises Refused."""
        if self.approved >= self.bounds.approved:
            raise Refused("too_many", f"the command has made {self.approved} requests", 429)
        self.approved += 1


@dataclass
class Exchange:
    """`approved` says that its place is one that is allowed; all of those are told, whatever becomes of them."""

    totals: Totals
    host: str = ""
    port: int = 0
    address: str | None = None
    outcome: str = "malformed"
    detail: str = ""
    approved: bool = False
    up_bytes: int = 0
    down_bytes: int = 0
    _began: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def refuse(self, refused: Refused) -> None:
        """Note why it goes no further."""
        self.outcome, self.detail = refused.outcome, refused.detail

    def told(self) -> dict[str, Any]:
        """As `runners.sandbox.spec.NetworkRequest`."""
        return {
            "host": self.host,
            "port": self.port,
            "address": self.address,
            "outcome": self.outcome,
            "detail": self.detail[:MAX_DETAIL],
            "up_bytes": self.up_bytes,
            "down_bytes": self.down_bytes,
            "ms": round(1000 * (time.monotonic() - self._began)),
        }

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """The next piece, empty at the end. Raises Refused when neither direction has moved for too long."""
        while True:
            idle = self.totals.bounds.idle_seconds - (time.monotonic() - self._last)
            if idle <= 0:
                raise Refused("too_slow", f"nothing came for {self.totals.bounds.idle_seconds:g} s", 504)
            try:
                data = await asyncio.wait_for(reader.read(CHUNK), idle)
            except TimeoutError:
                continue
            self._last = time.monotonic()
            return data

    async def send_up(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Pass on to the server. Raises Refused beyond what a command may send."""
        self.totals.up_bytes += len(data)
        if self.totals.up_bytes > self.totals.bounds.up_bytes:
            raise Refused("too_much", f"the command has sent {self.totals.bounds.up_bytes} bytes")
        self.up_bytes += len(data)
        await self._send(writer, data)

    async def send_down(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Pass on to the command. Raises Refused beyond what it may receive."""
        self.totals.down_bytes += len(data)
        if self.totals.down_bytes > self.totals.bounds.down_bytes:
            raise Refused("too_much", f"the command has received {self.totals.bounds.down_bytes} bytes")
        self.down_bytes += len(data)
        await self._send(writer, data)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        try:
            await asyncio.wait_for(writer.drain(), self.totals.bounds.idle_seconds)
        except TimeoutError:
            raise Refused("too_slow", f"nobody read for {self.totals.bounds.idle_seconds:g} s") from None
        self._last = time.monotonic()
