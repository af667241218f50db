"""Leases of a dead predecessor end at once, and nobody else's do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.records.job import BatchSpec
from ledger.steps import claim_step, lease_owners
from patchyard.lease_owner import forfeit_of_the_dead, owner_of
from tests.ledger.conftest import job_spec, nothing


def owner_in_a_process_that_ends(name: str) -> str:
    code = f"from patchyard.lease_owner import owner_of; print(owner_of({name!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def leased_by(database: Database, owner: str) -> None:
    submit_batch(database, BatchSpec(name="b"), [job_spec()])
    (offer,) = admit_jobs(database, capacity=1)
    assert claim_step(database, offer.step_id, owner=owner, lease_seconds=600, estimate=nothing) is not None


def test_a_dead_predecessors_leases_are_ended(database: Database) -> None:
    leased_by(database, owner_in_a_process_that_ends("sandbox"))
    assert forfeit_of_the_dead(database, "sandbox") == 1
    assert forfeit_of_the_dead(database, "sandbox") == 0


@pytest.mark.parametrize("other", ["a living one", "another name", "another namespace", "another form", "a new pid"])
def test_what_is_not_known_to_be_dead_keeps_its_leases(database: Database, other: str) -> None:
    dead = owner_in_a_process_that_ends("sandbox")
    owner, expected = {
        "a living one": (owner_of("sandbox"), 0),
        "another name": (dead.replace("sandbox@", "sandbox-2@"), 0),
        "another namespace": (dead + "0", 0),
        "another form": (dead.rpartition(".")[0], 0),
        "a new pid": (owner_of("sandbox").replace(".", ".9", 1), 1),  # the number is in use again, by another start
    }[other]
    leased_by(database, owner)
    assert forfeit_of_the_dead(database, "sandbox") == expected
    assert lease_owners(database, "sandbox") == [owner]
