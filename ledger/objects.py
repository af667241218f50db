"""Content-addressed bytes: packs, replays, acceptance files, outputs, patches. Compressed, capped, written once."""

from __future__ import annotations

import zlib
from typing import Any

from ledger.connect import Connection, Database, run
from ledger.errors import Permanent
from ledger.records.base import sha256_hex

MAX_OBJECT_BYTES = 64 * 1024 * 1024
_WORTH_COMPRESSING_BYTES = 256


class ObjectMissing(Permanent):
    """No object of this SHA-256 is in the ledger."""


class ObjectTooBig(Permanent):
    """The object is over the ledger's cap."""


def store_object(connection: Connection, kind: str, data: bytes) -> str:
    """Stores `data` on an open transaction and returns its SHA-256. ObjectTooBig over MAX_OBJECT_BYTES."""
    row = object_row(kind, data)
    run(connection, "put_object", **row)
    return str(row["sha256"])


def object_row(kind: str, data: bytes) -> dict[str, Any]:
    """The parameters of put_object. ObjectTooBig over MAX_OBJECT_BYTES."""
    if len(data) > MAX_OBJECT_BYTES:
        raise ObjectTooBig(f"an object of {len(data)} bytes ({kind}) is over the cap of {MAX_OBJECT_BYTES} bytes")
    packed = zlib.compress(data, 1) if kind != "pack" and len(data) >= _WORTH_COMPRESSING_BYTES else data
    smaller = len(packed) < len(data)
    return {
        "sha256": sha256_hex(data),
        "kind": kind,
        "size": len(data),
        "compressed": smaller,
        "data": packed if smaller else data,
    }


def put_object(db: Database, kind: str, data: bytes) -> str:
    """Stores `data` in a transaction of its own and returns its SHA-256."""
    with db.transaction() as connection:
        return store_object(connection, kind, data)


def get_object(db: Database, sha256: str) -> bytes:
    """The bytes of an object, checked against its name. ObjectMissing if there is none."""
    rows = db.run("get_object", sha256=sha256)
    if not rows:
        raise ObjectMissing(f"object {sha256} is not in the ledger")
    data = bytes(rows[0]["data"])
    if rows[0]["compressed"]:
        data = zlib.decompress(data)
    if sha256_hex(data) != sha256:
        raise ObjectMissing(f"object {sha256} is damaged in the ledger")
    return data


def has_object(db: Database, sha256: str) -> bool:
    """Whether the ledger has this object."""
    return bool(db.run("has_object", sha256=sha256)[0]["found"])


def packs_of(db: Database, agent_id: int) -> list[str]:
    """SHA-256 of the packs that lead from the base to the agent's head, in the order of the head's moves."""
    return [row["sha256"] for row in db.run("packs_of", agent=agent_id)]
