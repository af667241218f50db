"""Test runs keyed by content: what was run on which tree, in which image, under which limits."""

from __future__ import annotations

from ledger.connect import Database
from ledger.records.step import Claim
from ledger.records.verdict import TestRun
from ledger.storable import storable


def find_evidence(db: Database, key: str) -> TestRun | None:
    """The run of that key, marked as reused, or None."""
    rows = db.run("find_evidence", key=key)
    return TestRun.model_validate(rows[0]["run"]).model_copy(update={"reused": True}) if rows else None


def record_evidence(db: Database, claim: Claim, test_run: TestRun) -> None:
    """Keeps a run for whoever needs the same key; the first one stays. LeaseLost if the lease is gone."""
    db.run(
        "record_evidence",
        step=claim.step_id,
        fence=claim.fence,
        key=test_run.evidence_key,
        run=storable(test_run.plain()),
    )
