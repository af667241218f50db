"""The broker is wiped, restarted, stopped, and lies: it is a hint, so nothing is lost by it and nothing is believed."""

from __future__ import annotations

import itertools
import random
import signal
import threading
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
    refs = yard.submit(FIX, PATIENT, SHELL, TALKER, UNLUCKY, FIX)
    ended = threading.Event()
    liar = threading.Thread(target=_lie, args=(yard, refs, ended))
    liar.start()
    try:
        yard.ends_well(refs)
    finally:
        ended.set()
        liar.join()
    taken_again = [
        event.step_id
        for ref in refs
        for event in read_events(yard.db, yard.job(ref).id)
        if event.kind == "step_taken_again" and event.body["ending"] is None
    ]
    given_back = [step.id for step in yard.steps(refs[3]) if step.seq == 1]  # what its provider refused, twice
    assert taken_again == given_back * 2


def _lie(yard: Yard, refs: list[str], ended: threading.Event) -> None:
    """Until the jobs have ended: old and made-up steps, steps of other queues, and what waits, again and shuffled."""
    rng, send = random.Random(7), yard.sender()  # noqa: S311  (the same lies every time)
    for round_number in itertools.count():
        steps = [step.id for ref in refs for step in yard.steps(ref)]
        made_up = [1, 2**62, rng.randrange(1, 2**31)]
        for step in rng.choices(steps + made_up, k=40):
            send(step, rng.choice(QUEUES))
        for queue in QUEUES:
            waiting = yard.queued(queue)[:50]
            yard.push(queue, *rng.sample(waiting, len(waiting)))
            yard.push(queue, "garbage", b"\xff\xfe", "{}", '{"body": "W10=", "headers": {}}')
        if round_number == 2:  # a flood
            for step in steps[:1] * 1_000:
                send(step, "decide")
        if ended.wait(0.5):
            return
