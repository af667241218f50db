"""Probes in the ledger: what counts, for how long, and what the ledger refuses without."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from ledger.connect import Database
from ledger.errors import IsolationUnverified, LeaseLost
from ledger.probes import FAILED_COUNTS_SECONDS, find_valid_probe, latest_probes, probing, record_probe
from ledger.reads import job_sandboxes
from ledger.records.probe import Check, Probe, Subject
from ledger.records.step import Claim
from ledger.sandboxes import live_sandboxes, register_sandbox
from tests.fixtures.clock import move_clock
from tests.fixtures.probes import GOOD, IMAGE, subject

BAD = (*GOOD, Check(name="network.routes", ok=False, evidence="00000000 by eth0"))
Claimed = Callable[..., Claim]


def made(database: Database, about: Subject | None = None, checks: tuple[Check, ...] = GOOD, **more: float) -> Probe:
    lasts_seconds = more.get("lasts_seconds", 3600)
    return record_probe(database, about or subject(), checks, took_ms=7, lasts_seconds=lasts_seconds)


def register(database: Database, claim: Claim, name: str, probe_id: int | None, **changes: str) -> None:
    fields = {"name": name, "engine_host": "h", "image": IMAGE, **changes}
    register_sandbox(database, step_id=claim.step_id, fence=claim.fence, probe_id=probe_id, **fields)  # type: ignore[arg-type]


def test_a_probe_is_kept_with_its_evidence_and_counts_until_it_runs_out(database: Database) -> None:
    about = subject(kernel="6.1", boot="x")
    assert find_valid_probe(database, about) is None
    probe = made(database, about)
    assert (probe.ok, probe.failed, probe.checks, probe.host, probe.took_ms) == (True, (), GOOD, about.host, 7)
    known = find_valid_probe(database, about)
    assert known is not None
    assert (known.id, known.ok) == (probe.id, True)
    assert find_valid_probe(database, about, spare_seconds=3500) is not None
    assert find_valid_probe(database, about, spare_seconds=3700) is None
    with move_clock(database, seconds=3601):
        assert find_valid_probe(database, about) is None
        [row] = latest_probes(database)
        assert (row.id, row.expired) == (probe.id, True)


@pytest.mark.parametrize(
    "other",
    [
        subject(kernel="6.2", boot="x"),
        subject(kernel="6.1", boot="y"),
        subject("sha256:" + "b" * 64, kernel="6.1", boot="x"),
        subject(kernel="6.1", boot="x").model_copy(update={"runtime": "crun"}),
        subject(kernel="6.1", boot="x").model_copy(update={"backend": "oci"}),
    ],
    ids=["kernel", "boot", "image", "runtime", "backend"],
)
def test_a_probe_says_nothing_of_another_subject(database: Database, other: Subject) -> None:
    made(database, subject(kernel="6.1", boot="x"))
    assert find_valid_probe(database, other) is None


def test_the_last_probe_counts_for_better_or_worse(database: Database) -> None:
    good = made(database)
    bad = made(database, checks=BAD)
    known = find_valid_probe(database, subject(), spare_seconds=60)
    assert known is not None
    assert (known.id, known.ok, known.failed) == (bad.id, False, ("network.routes",))
    with move_clock(database, seconds=FAILED_COUNTS_SECONDS + 1):
        assert find_valid_probe(database, subject()) is None
    again = made(database)
    known = find_valid_probe(database, subject())
    assert known is not None
    assert (known.id, known.ok) == (again.id, True)
    assert good.id < bad.id < again.id
    assert [probe.id for probe in latest_probes(database, image=IMAGE)] == [again.id]


def test_a_jobs_sandbox_needs_a_probe_that_holds(database: Database, claimed: Claimed) -> None:
    claim = claimed()
    with pytest.raises(IsolationUnverified):
        register(database, claim, "none", None)
    with pytest.raises(IsolationUnverified):
        register(database, claim, "unknown", 4711)
    failed = made(database, subject(boot="1"), BAD)
    with pytest.raises(IsolationUnverified):
        register(database, claim, "failed", failed.id)
    good = made(database, subject(boot="2"))
    with pytest.raises(IsolationUnverified):
        register(database, claim, "another image", good.id, image="sha256:" + "b" * 64)
    register(database, claim, "good", good.id)
    with move_clock(database, seconds=3601), pytest.raises((IsolationUnverified, LeaseLost)):
        register(database, claim, "run out", good.id)
    made(database, subject(boot="2"), BAD)
    with pytest.raises(IsolationUnverified):
        register(database, claim, "overtaken", good.id)
    assert [row.name for row in live_sandboxes(database)] == ["good"]
    [row] = job_sandboxes(database, claim.job_id)
    assert (row.purpose, row.probe_id) == ("job", good.id)


def test_a_probe_that_ran_out_allows_nothing(database: Database, claimed: Claimed) -> None:
    claim = claimed(lease_seconds=3600)
    good = made(database, lasts_seconds=10)
    register(database, claim, "in time", good.id)
    with move_clock(database, seconds=11), pytest.raises(IsolationUnverified):
        register(database, claim, "too late", good.id)


def test_a_probes_own_sandbox_needs_none(database: Database, claimed: Claimed) -> None:
    claim = claimed()
    register(database, claim, "own", None, purpose="probe")
    [row] = job_sandboxes(database, claim.job_id)
    assert (row.purpose, row.probe_id, row.state) == ("probe", None, "registered")


def test_a_probe_cannot_be_called_good_when_a_check_failed(database: Database) -> None:
    probe = made(database, checks=BAD)
    assert not probe.ok
    for change in ("ok = true", "ok = true, failed = '{}'", "checks = '[]'"):
        with psycopg.connect(database.url) as connection, pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(f"UPDATE ledger.probes SET {change}".encode())  # noqa: S608


def test_one_session_probes_a_subject_at_a_time(database: Database) -> None:
    with probing(database, subject()) as first:
        assert first
        with probing(database, subject()) as second:
            assert not second
        with probing(database, subject(boot="another")) as elsewhere:
            assert elsewhere
    with probing(database, subject()) as later:
        assert later


def test_many_at_once_make_one_turn(database: Database) -> None:
    turns: list[bool] = []
    ready = threading.Barrier(6)
    done = threading.Event()

    def one() -> None:
        ready.wait()
        with probing(database, subject()) as mine:
            turns.append(mine)
            if len(turns) == 6:
                done.set()
            done.wait(10)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(turns) == [False] * 5 + [True]
