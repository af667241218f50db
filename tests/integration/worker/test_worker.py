"""Workers and a scheduler as real processes: what they do, and what they do not let themselves be talked into."""

from __future__ import annotations

import base64
import json
import time

import pytest

from ledger.batches import request_cancel
from ledger.records.budget import Amounts
from tests.integration.worker.yard import Yard, until

USAGE = {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.001}
PLANS = [{"plan": f"step {number}", "usage": USAGE} for number in range(3)]
EDIT = {
    "tool": "apply_patch",
    "args": {"edits": [{"path": "a.txt", "version": "@a.txt", "old": "one", "new": "eins"}]},
}


def test_jobs_go_their_way_through_all_queues_and_end_in_the_right_state(yard: Yard) -> None:
    yard.worker()
    yard.scheduler()
    talk, edit, nothing = yard.submit(
        PLANS,
        [{"plan": "look"}, {"tool": "read_file", "args": {"path": "a.txt"}}, EDIT, {"tool": "finish"}],
        [{"final": "I did nothing."}],
    )
    yard.wait_for_end(talk, edit, nothing)
    assert (yard.job(talk).state, yard.job(talk).reason) == ("failed", "replay_exhausted")
    assert (yard.job(edit).state, yard.job(edit).reason) == ("failed", "no_tests_ran")
    assert (yard.job(nothing).state, yard.job(nothing).reason) == ("failed", "empty_patch")
    assert [step.kind for step in yard.steps(edit)] == ["decide", "decide", "act", "decide", "act", "decide", "verify"]
    assert [step.attempt for step in yard.steps(edit)] == [1] * 7
    for ref in (talk, edit, nothing):
        yard.in_order(ref)


def test_garbage_and_made_up_hints_change_nothing_and_work_goes_on(yard: Yard) -> None:
    worker = yard.worker()
    body = base64.b64encode(b'[["seven", "decide"], {}, {}]').decode()
    headers = {"task": "patchyard.step", "id": "x"}
    forged = json.dumps({"body": body, "headers": headers, "properties": {"delivery_tag": "t"}})
    other_task = json.dumps({"body": body, "headers": headers | {"task": "celery.chord"}, "properties": {}})
    for queue in ("decide", "sandbox", "publish"):
        yard.push_raw(queue, "garbage", b"\xff\xfe\x00", "[]", "{}", "12", "null", "[" * 50_000, forged, other_task)
    for step_id, queue in [(1, "decide"), (2**62, "sandbox"), (-1, "decide"), (3, "no-such-queue")]:
        yard.send(step_id, "decide") if queue not in ("decide", "sandbox") else yard.send(step_id, queue)
    yard.scheduler()
    [ref] = yard.submit(PLANS)
    yard.wait_for_end(ref)
    until(lambda: not any(yard.waiting(queue) for queue in ("decide", "sandbox", "publish")))

    def dropped() -> int:
        return sum(line.get("event") == "message_dropped" for line in worker.lines())

    until(lambda: dropped() >= 3 * 9 + 1)
    assert dropped() == 3 * 9 + 1
    assert worker.popen.poll() is None
    assert not worker.says("step_broke")
    yard.in_order(ref)


def test_a_flood_of_repeated_messages_leads_to_one_execution(yard: Yard) -> None:
    [ref] = yard.submit(PLANS)
    scheduler = yard.scheduler()
    until(lambda: yard.waiting("decide") == 1)
    [first] = yard.steps(ref)
    for _ in range(300):
        yard.send(first.id)
    yard.worker("decide", "--concurrency", "4")
    yard.worker("decide", "--concurrency", "4")
    yard.wait_for_end(ref)
    until(lambda: yard.waiting("decide") == 0)
    assert [step.attempt for step in yard.steps(ref)] == [1] * 4
    assert yard.events(ref).count("decision") == 3
    assert scheduler.popen.poll() is None
    yard.in_order(ref)


def test_a_decide_worker_does_no_sandbox_step_whatever_the_hint_says(yard: Yard) -> None:
    yard.scheduler()
    worker = yard.worker("decide")
    [ref] = yard.submit([EDIT])
    until(lambda: yard.waiting("sandbox") == 1)
    act = yard.steps(ref)[1]
    yard.push_raw("decide", *yard.broker.lrange("patchyard:sandbox", 0, -1))  # type: ignore[misc]
    for queue in ("decide", "sandbox", "publish"):
        yard.send(act.id, queue)
    until(lambda: yard.waiting("decide") == 0)
    until(lambda: worker.says("hint_dropped"))
    time.sleep(0.2)
    step = yard.steps(ref)[1]
    assert (step.state, step.attempt) == ("ready", 0)


def test_a_worker_that_is_killed_in_a_step_is_followed_by_another_that_does_it_again(yard: Yard) -> None:
    yard.scheduler()
    first = yard.worker("decide", "--name", "first")
    [ref] = yard.submit([{"plan": "slow", "latency_ms": 3_000, "usage": USAGE}])
    until(lambda: bool(yard.steps(ref)) and yard.steps(ref)[0].state == "leased")
    time.sleep(0.3)
    first.kill()
    yard.worker("decide", "--name", "second")
    yard.wait_for_end(ref)
    done = yard.steps(ref)[0]
    assert (done.state, done.attempt) == ("done", 2)
    assert "lease_expired" in yard.events(ref)
    # The call of the dead worker may have been billed, so it stays spent.
    assert yard.steps(ref)[0].spent == Amounts(steps=1, input_tokens=100, output_tokens=10, cost_microusd=1_000)
    yard.in_order(ref)


def test_a_step_longer_than_its_lease_is_kept_and_done_once(yard: Yard) -> None:
    yard.scheduler()
    yard.worker("decide")
    yard.worker("decide")
    [ref] = yard.submit([{"plan": "slow", "latency_ms": 4_000}])
    yard.wait_for_end(ref)
    assert yard.steps(ref)[0].attempt == 1
    assert "lease_expired" not in yard.events(ref)


def test_failed_calls_are_billed_and_tried_again_until_the_attempts_are_used_up(yard: Yard) -> None:
    yard.scheduler()
    yard.worker("decide")
    fails = [{"error": error, "usage": USAGE} for error in ("timeout", "rate_limited")]
    mended, hopeless = yard.submit([*fails, {"plan": "at last"}], [fails[0]] * 9, model_options={})
    yard.wait_for_end(mended, seconds=40)
    assert yard.job(mended).reason == "replay_exhausted"
    assert yard.steps(mended)[0].attempt == 3
    assert yard.events(mended).count("model_failed") == 2
    yard.wait_for_end(hopeless, seconds=60)
    assert (yard.job(hopeless).state, yard.job(hopeless).reason) == ("failed", "model_error")
    for ref in (mended, hopeless):
        yard.in_order(ref)


def test_a_cancelled_job_stops_waiting_for_its_model(yard: Yard) -> None:
    yard.scheduler()
    yard.worker("decide")
    [ref] = yard.submit([{"plan": "very slow", "latency_ms": 600_000}])
    until(lambda: bool(yard.steps(ref)) and yard.steps(ref)[0].state == "leased")
    request_cancel(yard.db, by="test", job_id=yard.job(ref).id)
    yard.wait_for_end(ref, seconds=5)
    assert (yard.job(ref).state, yard.job(ref).reason) == ("cancelled", "cancelled_by_user")
    yard.in_order(ref)


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_gives_its_step_back_within_bounds(yard: Yard) -> None:
    yard.scheduler()
    worker = yard.worker("decide")
    [ref] = yard.submit([{"plan": "slow", "latency_ms": 60_000}])
    until(lambda: bool(yard.steps(ref)) and yard.steps(ref)[0].state == "leased")
    started = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - started < 50
    [step] = yard.steps(ref)
    assert (step.state, step.attempt) == ("ready", 0)
    assert "step_given_back" in yard.events(ref)


def test_an_idle_worker_and_a_scheduler_end_at_once(yard: Yard) -> None:
    worker, scheduler = yard.worker(), yard.scheduler()
    started = time.monotonic()
    assert (worker.stop(), scheduler.stop()) == (0, 0)
    assert time.monotonic() - started < 15


def test_of_two_schedulers_one_leads_and_the_other_takes_over_in_seconds(yard: Yard) -> None:
    leader = yard.scheduler()
    follower = yard.start("scheduler", ready="waits_for_the_lead")
    yard.worker("decide")
    [first] = yard.submit(PLANS)
    yard.wait_for_end(first)
    assert not follower.says("lead_taken")
    leader.kill()
    until(lambda: follower.says("lead_taken"), seconds=5)
    [second] = yard.submit(PLANS)
    yard.wait_for_end(second, seconds=10)
