"""What the ledger's tests share: a job to submit and the ways to move it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.records.budget import Amounts, Budget
from ledger.records.job import BatchSpec, JobSpec, Tests
from ledger.records.source import SourceRef
from ledger.records.step import Claim
from ledger.steps import claim_step

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def job_spec(key: str = "job-1", **changes: object) -> JobSpec:
    """A job that names no real repository: the ledger never looks."""
    values: dict[str, object] = {
        "key": key,
        "source": SourceRef(kind="git", location="/nowhere"),
        "base_commit": "1" * 40,
        "base_tree": TREE,
        "issue": "it is broken",
        "image": "sha256:" + "a" * 64,
        "image_name": "sandbox-python",
        "model": "replay:x",
        "budget": Budget(),
        "tests": Tests(command=("true",)),
    }
    return JobSpec.model_validate({**values, **changes})


def nothing(_claim: Claim) -> Amounts:
    """An estimate that holds nothing."""
    return Amounts()


@pytest.fixture
def first_step(database: Database) -> Callable[..., int]:
    """Submits and admits one job and returns the id of its first step."""
    made = 0

    def make(**changes: object) -> int:
        nonlocal made
        made += 1
        submit_batch(database, BatchSpec(name=f"batch-{made}"), [job_spec(**changes)])
        return admit_jobs(database, capacity=1000)[0].step_id

    return make


@pytest.fixture
def claimed(database: Database, first_step: Callable[..., int]) -> Callable[..., Claim]:
    """Submits, admits and claims one job's first step."""

    def make(*, hold: Amounts = Amounts(), lease_seconds: float = 30, **changes: object) -> Claim:  # noqa: B008
        claim = claim_step(
            database, first_step(**changes), owner="w1", lease_seconds=lease_seconds, estimate=lambda _claim: hold
        )
        assert claim is not None
        return claim

    return make
