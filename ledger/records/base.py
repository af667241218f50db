"""The base of every record that crosses a room's door: frozen, closed, and one canonical JSON form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def plain(self) -> dict[str, Any]:
        """The record as JSON-ready plain values."""
        return self.model_dump(mode="json")


def canonical_json(value: object) -> bytes:
    """One byte string per value: sorted keys, no spaces, UTF-8. Fingerprints and identities are taken over it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_hex(data: bytes) -> str:
    """The lower-case hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
