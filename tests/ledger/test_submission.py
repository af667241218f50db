"""A submission is whole or absent, and the same batch twice is one batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from ledger.batches import Submitted, submit_batch
from ledger.connect import Database, check
from ledger.dispatch import OpenBatch, active_jobs, admit_jobs, fair_shares, ready_offers
from ledger.errors import BadInput, LedgerUnavailable
from ledger.logins import ensure_login, login_url
from ledger.migrate import migrate
from ledger.objects import ObjectMissing, get_object, put_object
from ledger.reads import batch_progress, find_batch, find_job, iter_results, list_batches, list_jobs
from ledger.records.base import sha256_hex
from ledger.records.job import Acceptance, BatchSpec, JobSpec
from ledger.records.step import NewObject
from tests.fixtures.database import database_url
from tests.ledger.conftest import job_spec

BATCH = BatchSpec(name="fixes")


def jobs(amount: int, **changes: object) -> list[JobSpec]:
    """Jobs job-0 … that differ by their key."""
    return [job_spec(f"job-{number}", **changes) for number in range(amount)]


def count(database: Database, table: str) -> int:
    """How many rows a table has."""
    with psycopg.connect(database.url) as connection:
        return connection.execute(f"SELECT count(*) FROM ledger.{table}").fetchone()[0]  # noqa: S608  # type: ignore[index]


def test_the_same_batch_twice_is_one_batch(database: Database) -> None:
    first = submit_batch(database, BATCH, jobs(3))
    again = submit_batch(database, BATCH, reversed(jobs(3)))
    assert first == Submitted(batch_id=first.batch_id, created=True, jobs=3)
    assert again == Submitted(batch_id=first.batch_id, created=False, jobs=3)
    assert count(database, "jobs") == 3


def test_changed_jobs_under_the_same_name_are_refused_with_the_difference(database: Database) -> None:
    submit_batch(database, BATCH, jobs(3))
    changed = [jobs(1)[0], job_spec("job-1", issue="another"), job_spec("job-9")]
    with pytest.raises(BadInput) as refused:
        submit_batch(database, BATCH, changed)
    assert 'job job-1 changed: issue "it is broken" → "another"' in refused.value.message
    assert "job job-2 removed; job job-9 added" in refused.value.message
    assert "\n" not in refused.value.message
    with pytest.raises(BadInput, match=r"weight 1\.0 → 2\.0"):
        submit_batch(database, BatchSpec(name="fixes", weight=2), jobs(3))
    assert count(database, "jobs") == 3


def test_an_error_in_the_middle_of_the_stream_leaves_nothing(database: Database) -> None:
    def broken() -> Iterator[JobSpec]:
        yield from jobs(1200)
        raise BadInput("line 1201 is no job")

    with pytest.raises(BadInput, match="line 1201"):
        submit_batch(database, BATCH, broken(), [NewObject(kind="replay", data=b"{}")])
    assert [count(database, table) for table in ("batches", "jobs", "steps", "objects", "events")] == [0] * 5


def test_two_submissions_of_one_name_at_once_make_one_batch(database: Database) -> None:
    results: list[Submitted] = []
    threads = [
        threading.Thread(target=lambda: results.append(submit_batch(database, BATCH, jobs(50)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.created for result in results) == [False, False, False, True]
    assert count(database, "jobs") == 50


def test_jobs_wait_until_they_are_admitted(database: Database) -> None:
    submit_batch(database, BatchSpec(name="capped", max_parallel=2), jobs(5))
    assert ready_offers(database, limit=10, stale_seconds=0) == []
    assert len(admit_jobs(database, capacity=10)) == 2
    assert active_jobs(database) == 2
    assert admit_jobs(database, capacity=10) == []


def test_a_job_with_acceptance_starts_with_the_red_on_its_base(database: Database) -> None:
    acceptance = Acceptance(command=("true",), fail_to_pass=("t",))
    submit_batch(database, BATCH, [job_spec("a", acceptance=acceptance), job_spec("b")])
    assert sorted(offer.queue for offer in admit_jobs(database, capacity=10)) == ["decide", "sandbox"]


def test_shares_follow_weights_caps_and_what_is_active() -> None:
    heavy = OpenBatch(id=1, weight=3, max_parallel=None, active=0)
    light = OpenBatch(id=2, weight=1, max_parallel=None, active=0)
    assert fair_shares([heavy, light], 8) == {1: 6, 2: 2}
    assert fair_shares([heavy, OpenBatch(id=3, weight=1, max_parallel=1, active=0)], 8) == {1: 7, 3: 1}
    assert fair_shares([OpenBatch(id=4, weight=1, max_parallel=None, active=5), light], 4) == {2: 4}
    assert fair_shares([OpenBatch(id=5, weight=1, max_parallel=2, active=2)], 4) == {}


def test_reads_show_what_was_submitted(database: Database) -> None:
    submitted = submit_batch(database, BATCH, jobs(3))
    assert find_batch(database, "fixes").id == submitted.batch_id
    assert find_batch(database, str(submitted.batch_id)).name == "fixes"
    assert list_batches(database)[0].states == {"queued": 3}
    progress = batch_progress(database, submitted.batch_id)
    assert (progress.total, progress.granted.steps, progress.spent.steps) == (3, 120, 0)
    assert [line.key for line in list_jobs(database, submitted.batch_id, limit=2)] == ["job-0", "job-1"]
    assert find_job(database, "fixes/job-2").spec == jobs(3)[2]
    assert find_job(database, f"{submitted.batch_id}/job-2").key == "job-2"
    assert [row.job for row in iter_results(database, submitted.batch_id)] == ["job-0", "job-1", "job-2"]
    for missing in ("nope", "fixes/job-7", "999999"):
        with pytest.raises(BadInput, match=missing):
            find_job(database, missing)


@pytest.mark.parametrize("data", [b"", b"short", b"long " * 10_000, bytes(range(256)) * 50])
def test_objects_come_back_as_they_went_in(database: Database, data: bytes) -> None:
    digest = put_object(database, "output", data)
    assert digest == put_object(database, "output", data) == sha256_hex(data)
    assert get_object(database, digest) == data
    with pytest.raises(ObjectMissing):
        get_object(database, "0" * 64)


def test_migrating_twice_and_at_once_changes_nothing(ledger_url: str, database: Database) -> None:
    submit_batch(database, BATCH, jobs(1))
    threads = [threading.Thread(target=migrate, args=(ledger_url,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert find_batch(database, "fixes").jobs == 1


def test_a_database_that_is_not_there_says_why(postgres_url: str) -> None:
    with pytest.raises(LedgerUnavailable, match="Connection refused"):
        check("postgresql://x:y@127.0.0.1:1/z")
    with pytest.raises(LedgerUnavailable, match="does not exist"):
        check(database_url(postgres_url, "nowhere"))
    for url in ("postgresql:///x?foo=bar", "nonsense"):
        with pytest.raises(BadInput, match="the database's URL"):
            migrate(url)
    check(postgres_url)


def test_each_kind_of_service_gets_a_login(postgres_url: str, ledger_url: str) -> None:
    url = ensure_login(ledger_url, "exporter", "a b:c/d@e")
    assert ensure_login(ledger_url, "exporter", "a b:c/d@e") == url == login_url(ledger_url, "exporter", "a b:c/d@e")
    check(url)
    with pytest.raises(LedgerUnavailable, match="password authentication failed"):
        check(login_url(ledger_url, "exporter", "wrong"))
