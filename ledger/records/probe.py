"""What is known of a boundary: checks with their evidence, and what exactly they were made on."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from ledger.records.base import Record, canonical_json, sha256_hex
from ledger.records.job import Digest

MAX_EVIDENCE_CHARACTERS = 600


class Check(Record):
    """One promise of a sandbox, and what was seen of it. What was not seen is not kept: `ok` is false then."""

    name: str = Field(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$")
    ok: bool
    evidence: str = Field(max_length=MAX_EVIDENCE_CHARACTERS)


class Subject(Record):
    """What a probe is about. Evidence about one subject says nothing of another: not of another image, runtime, or
    engine, and not of the same machine after it was started anew. `host` holds the facts that tell hosts apart."""

    image: Digest
    backend: str
    runtime: str
    host: dict[str, str]

    @property
    def key(self) -> str:
        """One text for each subject."""
        return sha256_hex(canonical_json(self.plain()))


class Probe(Record):
    """A probe as the ledger has it. `ok` says that no check failed; `failed` names those that did."""

    id: int
    image: str
    backend: str
    runtime: str
    host: dict[str, str]
    ok: bool
    failed: tuple[str, ...]
    checks: tuple[Check, ...]
    took_ms: int
    probed_at: datetime
    expires_at: datetime
    expired: bool
