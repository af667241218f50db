"""From a host and port to a connection: looked up once, judged, and connected to at the address that was judged.

A name is resolved by this machine's own resolver, and by nobody else: whatever the answer of a second look-up would be
(DNS rebinding), there is none. If one of its addresses may not be connected to, none of them is: an honest name has no
mixture of public addresses and ours.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from ipaddress import ip_address

from policy.network import Address, Pattern, Place, Range, meant, why_refused
from runners.sandbox.egress.bounds import CHUNK, Bounds
from runners.sandbox.egress.exchange import Exchange, Refused

MOST_TRIED = 4
"""Addresses of one name that are tried, one after the other."""
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Rules:
    """What may be reached: `allow` by host and port, `private` are ranges besides the public addresses."""

    allow: tuple[Pattern, ...]
    private: tuple[Range, ...]

    def require(self, place: Place) -> None:
        """Raises Refused for what is not allowed. An address is judged first: it says more of what was tried."""
        if place.address is not None:
            self.require_address(place.address)
        if not any(pattern.allows(place) for pattern in self.allow):
            raise Refused("not_allowed", f"{place} is not among what this job's network allows")

    def require_address(self, address: Address) -> None:
        """Raises Refused for an address that nobody may connect to from here, and for one of this machine's own."""
        if (word := why_refused(address, self.private)) is not None:
            raise Refused("not_public", f"{address} is not public ({word})")
        if not any(address in permitted for permitted in self.private) and _is_own(address):
            raise Refused("own_address", f"{address} is an address of the machine that runs the sandbox")


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, as texts. Raises OSError."""
    # As bytes, the name is taken as it is: no codec makes another of it.
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def reach(exchange: Exchange, place: Place, rules: Rules, pool: Executor) -> Stream:
    """A connection to a place that is allowed. Raises Refused."""
    addresses = await _addresses(place, rules, pool, exchange.totals.bounds)
    failed = ""
    for address in addresses[:MOST_TRIED]:
        exchange.address = str(address)
        try:
            async with asyncio.timeout(exchange.totals.bounds.connect_seconds):
                return await asyncio.open_connection(str(address), place.port, limit=CHUNK)
        except TimeoutError:
            failed = f"{address} did not answer in time"
        except OSError as refused:
            failed = f"{address}: {refused.strerror or refused}"
    raise Refused("unreachable", failed, 502)


async def _addresses(place: Place, rules: Rules, pool: Executor, bounds: Bounds) -> Sequence[Address]:
    """Of the place; all of them may be connected to."""
    if place.address is not None:
        return (place.address,)
    looking = asyncio.get_running_loop().run_in_executor(pool, look_up, place.host, place.port)
    try:
        async with asyncio.timeout(bounds.lookup_seconds):
            texts = await looking
    except TimeoutError:
        raise Refused("unresolved", f"{place.host} was not resolved in time", 504) from None
    except OSError as unknown:
        raise Refused("unresolved", f"{place.host}: {unknown.strerror or unknown}", 502) from None
    addresses = [meant(ip_address(text)) for text in texts]
    if not addresses:
        raise Refused("unresolved", f"{place.host} has no address", 502)
    for address in addresses:
        rules.require_address(address)
    return addresses


def _is_own(address: Address) -> bool:
    """Whether it is one of this machine's: the kernel then takes it for the sender's too. Nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((str(address), 9))
            return ip_address(asking.getsockname()[0]) == address
    except OSError:
        return False  # there is no way to it at all
