"""What the ledger says of disks: the images that its jobs still want, and its own size."""

from __future__ import annotations

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.objects import put_object
from ledger.reads import find_job
from ledger.records.job import BatchSpec
from ledger.records.step import Completion
from ledger.steps import claim_step, complete_step
from ledger.stored import live_images, stored_bytes
from tests.ledger.conftest import job_spec, nothing
from tests.ledger.test_roles import As, as_service

__all__ = ["as_service"]
IMAGES = ["sha256:" + digit * 64 for digit in "abc"]


def test_the_images_of_jobs_that_have_not_ended_are_known_to_who_needs_to(database: Database, as_service: As) -> None:
    jobs = [job_spec(f"job-{number}", image=image) for number, image in enumerate([*IMAGES, IMAGES[0]])]
    submit_batch(database, BatchSpec(name="b"), jobs)
    for offer in admit_jobs(database, capacity=2):
        claim = claim_step(database, offer.step_id, owner="w", lease_seconds=60, estimate=nothing)
        assert claim is not None
        complete_step(database, claim, Completion(result={}, end="model_error"))
    ended = [ref for ref in ("b/job-0", "b/job-1") if find_job(database, ref).finished_at is not None]
    assert ended == ["b/job-0", "b/job-1"]
    assert live_images(database) == {IMAGES[0], IMAGES[2]}
    for kind in ("sandbox", "api"):
        assert live_images(as_service(kind)) == {IMAGES[0], IMAGES[2]}


def test_the_ledgers_size_is_known_by_table(database: Database) -> None:
    before = stored_bytes(database)
    assert before.keys() > {"jobs", "steps", "objects", "events", "sandboxes"}
    put_object(database, "output", b"".join(bytes([n % 251]) * 7 + str(n).encode() for n in range(100_000)))
    assert stored_bytes(database)["objects"] > before["objects"]
