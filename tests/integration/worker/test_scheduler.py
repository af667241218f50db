"""The scheduler's loop on a real ledger, with a broker that the test makes fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import active_jobs
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec, JobSpec
from ledger.records.source import SourceRef
from ledger.records.step import Offer
from ledger.steps import claim_step
from scheduler.dispatch import BrokerUnavailable
from scheduler.service import Pace, Scheduler
from tests.integration.worker.yard import until

PACE = Pace(capacity=3, lost_seconds=0.5, stale_seconds=2.0, sweep_seconds=0.2, idle_seconds=0.05, follow_seconds=0.2)


class Broker:
    """What was sent; away when told so."""

    def __init__(self) -> None:
        self.sent: list[Offer] = []
        self.waiting = 0
        self.away = False

    def send(self, offer: Offer) -> None:
        if self.away:
            raise BrokerUnavailable
        self.sent.append(offer)

    def depth(self) -> int:
        if self.away:
            raise BrokerUnavailable
        return self.waiting

    def steps(self) -> list[int]:
        return [offer.step_id for offer in self.sent]


@pytest.fixture
def broker() -> Broker:
    return Broker()


@contextmanager
def _serving(url: str, broker: Broker, pace: Pace = PACE) -> Iterator[None]:
    stop = threading.Event()
    with Database(url, name="scheduler", pool_max=2) as db:
        scheduler = Scheduler(
            db, send=broker.send, depth=broker.depth, wait=lambda seconds: _pause(stop, seconds), stop=stop, pace=pace
        )
        thread = threading.Thread(target=scheduler.serve)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(20)
        assert not thread.is_alive()


def _pause(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)


@pytest.fixture
def submit(database: Database) -> Callable[[int], None]:
    def make(amount: int) -> None:
        jobs = [
            JobSpec(
                key=f"job-{number}",
                source=SourceRef(kind="git", location="/nowhere"),
                base_commit="1" * 40,
                base_tree="2" * 40,
                issue="",
                image="sha256:" + "a" * 64,
                image_name="sandbox-python",
                model="replay:x",
            )
            for number in range(amount)
        ]
        submit_batch(database, BatchSpec(name="batch"), jobs)

    return make


def test_no_more_jobs_are_in_progress_than_there_is_capacity(
    database: Database, ledger_url: str, broker: Broker, submit: Callable[[int], None]
) -> None:
    submit(10)
    broker.waiting = 3
    with _serving(ledger_url, broker):
        until(lambda: len(broker.sent) == 3)
        time.sleep(0.3)
    assert active_jobs(database) == 3
    assert len(broker.sent) == 3


def test_an_offer_that_nobody_takes_is_sent_again_soon_when_the_queues_are_empty_and_late_when_not(
    ledger_url: str, broker: Broker, submit: Callable[[int], None]
) -> None:
    submit(1)
    broker.waiting = 1
    with _serving(ledger_url, broker):
        until(lambda: len(broker.sent) == 1)
        time.sleep(1.2)
        assert len(broker.sent) == 1
        broker.waiting = 0
        until(lambda: len(broker.sent) == 2, seconds=0.8)
    assert len(set(broker.steps())) == 1


def test_what_could_not_be_sent_is_sent_once_the_broker_is_back(
    ledger_url: str, broker: Broker, submit: Callable[[int], None]
) -> None:
    broker.away = True
    broker.waiting = 1
    submit(3)
    with _serving(ledger_url, broker, replace(PACE, stale_seconds=60)):
        time.sleep(0.5)
        assert broker.sent == []
        broker.away = False
        until(lambda: len(broker.sent) == 3, seconds=2)
    assert len(set(broker.steps())) == 3


def test_leases_that_ran_out_are_taken_and_offered_again(
    database: Database, ledger_url: str, broker: Broker, submit: Callable[[int], None]
) -> None:
    submit(1)
    broker.waiting = 1
    with _serving(ledger_url, broker):
        until(lambda: len(broker.sent) == 1)
        claim_step(database, broker.sent[0].step_id, owner="x", lease_seconds=0.3, estimate=lambda _claim: Amounts())
        until(lambda: len(broker.sent) == 2, seconds=3)


def test_while_one_leads_the_other_sends_nothing_and_then_takes_over(
    database: Database, ledger_url: str, submit: Callable[[int], None]
) -> None:
    first, second = Broker(), Broker()
    with _serving(ledger_url, second):
        with _serving(ledger_url, first):
            submit(3)
            until(lambda: len(first.sent) + len(second.sent) >= 3)
            leader, other = (first, second) if first.sent else (second, first)
            assert other.sent == []
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("UPDATE ledger.steps SET offered_at = NULL")
        leader.sent.clear()
        until(lambda: len(second.sent) >= 3, seconds=5)


def test_the_loss_of_the_ledger_costs_the_lead_and_nothing_else(
    database: Database, ledger_url: str, broker: Broker, submit: Callable[[int], None]
) -> None:
    with _serving(ledger_url, broker):
        for _ in range(3):
            time.sleep(0.2)
            with psycopg.connect(database.url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name <> 'test' AND pid <> pg_backend_pid()"
                )
        submit(3)
        until(lambda: len(broker.sent) >= 3, seconds=15)
