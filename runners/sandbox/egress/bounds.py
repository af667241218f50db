"""How much one command may have of its network."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

CHUNK = 1 << 16
"""The most that is read at once, and held of one connection in either direction."""


@dataclass(frozen=True)
class Bounds:
    """For one command together: `at_once` connections, `accepted` in all, `approved` requests to what is allowed, so
    many bytes `up` and `down`; `refused_told` of what was refused is told one by one. For one connection: seconds
    until its request (or its TLS greeting) is there, a name is resolved, a connection made, and without a byte.
    `pause_seconds` pass between two connections."""

    at_once: int = 32
    accepted: int = 10_000
    approved: int = 1_000
    refused_told: int = 100
    up_bytes: int = 64 * MIB
    down_bytes: int = 1024 * MIB
    head_seconds: float = 10.0
    lookup_seconds: float = 10.0
    connect_seconds: float = 10.0
    idle_seconds: float = 60.0
    pause_seconds: float = 0.01
