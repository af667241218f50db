"""The broker is wiped, restarted, stopped, and lies: it is a hint, so nothing is lost by it and nothing is believed."""

from __future__ import annotations

import random
import signal
import time

import pytest

from ledger.events import read_events
from tests.chaos.crew import until
from tests.chaos.jobs import FIX, PATIENT, SHELL, TALKER, UNLUCKY
from tests.chaos.yard import QUEUES, Yard

pytestmark = pytest.mark.engine


def _done(yard: Yard, refs: list[str]) -> int:
    return sum(step.state == "done" for ref in refs for step in yard.steps(ref))


def test_a_broker_that_is_wiped_restarted_and_stopped_loses_nothing(yard: Yard) -> None:
    refs = yard.submit(FIX, SHELL, UNLUCKY, FIX)
    until(lambda: _done(yard, refs) >= 3)
    yard.valkey.wipe()
    until(lambda: _done(yard, refs) >= 8)
    yard.valkey.restart()
    yard.valkey.wipe()
    until(lambda: _done(yard, refs) >= 14)
    yard.valkey.server.pause()
    time.sleep(7)  # longer than whoever sends waits for it
    yard.valkey.server.resume()
    yard.ends_well(refs)


def test_a_worker_that_was_busy_when_the_broker_went_comes_back(yard: Yard) -> None:
    [ref] = yard.submit(PATIENT)
    until(lambda: [step.state for step in yard.steps(ref)] == ["leased"])
    yard.valkey.server.end(signal.SIGKILL)
    until(lambda: _done(yard, [ref]) == 1)
    time.sleep(0.5)  # its only place is free again, and the broker could not be told
    yard.valkey.server.start()
    yard.ends_well([ref], seconds=30)


def test_a_broker_that_repeats_reorders_and_makes_up_messages_is_not_believed(yard: Yard) -> None:
    refs = yard.submit(FIX, SHELL, TALKER, UNLUCKY, FIX)
    until(lambda: _done(yard, refs) >= 2)
    for round_number in range(8):
        _lie(yard, refs, random.Random(round_number))  # noqa: S311  (the same lies every time)
        time.sleep(0.4)
    first = yard.steps(refs[0])[0].id
    for _ in range(500):  # a flood
        yard.send(first, "sandbox")
    yard.ends_well(refs)
    taken_again = [
        event.step_id
        for ref in refs
        for event in read_events(yard.db, yard.job(ref).id)
        if event.kind == "step_taken_again"
    ]
    refused_twice_by_its_provider = [step.id for step in yard.steps(refs[3]) if step.seq == 1]
    assert taken_again == refused_twice_by_its_provider * 2
    until(lambda: not any(yard.queued(queue) for queue in QUEUES), what="all lies were looked into")


def _lie(yard: Yard, refs: list[str], rng: random.Random) -> None:
    """Old and made-up steps, steps of other queues, garbage, and what waits, again and in another order."""
    steps = [step.id for ref in refs for step in yard.steps(ref)]
    for step in rng.choices([*steps, 1, 2**62, rng.randrange(1, 2**31)], k=40):
        yard.send(step, rng.choice(QUEUES))
    for queue in QUEUES:
        waiting = yard.queued(queue)[:20]
        yard.push(queue, *rng.sample(waiting, len(waiting)))
        yard.push(queue, "garbage", b"\xff\xfe", "{}", '{"body": "W10=", "headers": {}}')
