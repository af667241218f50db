"""A publish step under a lease in a real ledger, and the worlds that its effects change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.records.job import BatchSpec
from ledger.records.step import Claim, Completion, NextStep
from ledger.steps import claim_step, complete_step
from runners.effects.effect import Patience
from tests.fixtures.database import database_url
from tests.fixtures.git_remote import ssh_remotes  # noqa: F401  (a fixture)
from tests.integration.effects.worlds import World, world_of
from tests.ledger.conftest import job_spec, nothing

_NUMBERS = itertools.count(1)
PATIENCE = Patience(settle_seconds=0.6, first_pause_seconds=0.05, turn_seconds=4, again_seconds=1)


@pytest.fixture(scope="session")
def database(postgres_url: str, migrated_template: str) -> Iterator[Database]:
    """One ledger for all tests of effects: each has its own job in it, and its own remote."""
    name = "effects"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(migrated_template))
        )
    with Database(database_url(postgres_url, name), name="test", pool_max=10) as opened:
        yield opened


@pytest.fixture
def publish_step(database: Database) -> Callable[[], int]:
    """Brings a job to its publish step and returns the step's id."""

    def make() -> int:
        submit_batch(database, BatchSpec(name=f"fixes-{next(_NUMBERS)}"), [job_spec()])
        first = claim(database, admit_jobs(database, capacity=100_000)[0].step_id)
        verified = Completion(result={}, next=NextStep(kind="publish"), verdict={"tree": first.head_tree})
        offer = complete_step(database, first, verified)
        assert offer is not None
        return offer.step_id

    return make


def claim(database: Database, step: int, *, lease_seconds: float = 600) -> Claim:
    """The lease of a step that must be to be had."""
    got = claim_step(database, step, owner="publisher", lease_seconds=lease_seconds, estimate=nothing)
    assert got is not None
    return got


@pytest.fixture
def claimed(database: Database, publish_step: Callable[[], int]) -> Claim:
    """A publish step under a lease."""
    return claim(database, publish_step())


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The world named by the test's parameter."""
    tmp_path.chmod(0o755)
    with world_of(request.param, tmp_path, lambda: request.getfixturevalue("ssh_remotes")) as opened:
        yield opened
