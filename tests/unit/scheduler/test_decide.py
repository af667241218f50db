"""What follows from a decision, and what a failed call of a model costs."""

from __future__ import annotations

import threading
import time

import pytest

from ledger.records.budget import Amounts
from ledger.records.step import Completion
from scheduler.decide import Backoff, GiveBack, decide
from scheduler.models.model import NotPrepared, Stopped
from tests.unit.scheduler.makers import claim_of, decider_of, job_of

USAGE = b', "usage": {"input_tokens": 100, "output_tokens": 20, "cost_usd": 0.003}}'
SPENT = Amounts(steps=1, input_tokens=100, output_tokens=20, cost_microusd=3_000)


def _decided(replay: bytes, **claim: object) -> Completion:
    outcome = decide(claim_of(job_of(replay), **claim), decider_of(replay))
    assert isinstance(outcome, Completion)
    return outcome


def test_a_plan_leads_to_the_next_turn() -> None:
    done = _decided(b'{"plan": "look first"' + USAGE)
    assert done.next is not None
    assert (done.next.kind, done.next.input) == ("decide", {})
    assert done.spent == SPENT
    assert done.model_state == {"position": 1}
    assert done.result["text"] == "look first"


def test_a_tool_call_leads_to_an_act_step_with_the_call_as_its_input() -> None:
    done = _decided(b'{"tool": "read_file", "args": {"path": "a.py"}' + USAGE)
    assert done.next is not None
    assert done.next.kind == "act"
    assert done.next.input == {"call_id": "call_3", "name": "read_file", "arguments": {"path": "a.py"}}
    assert done.job_state is None


@pytest.mark.parametrize("line", [b'{"final": "done"', b'{"tool": "finish", "args": {"summary": "done"}'])
def test_final_and_finish_ask_for_verification_and_grant_nothing(line: bytes) -> None:
    done = _decided(line + USAGE)
    assert done.next is not None
    assert (done.next.kind, done.next.input, done.job_state) == ("verify", {"on": "head"}, "verifying")
    assert done.end is None


def test_each_turn_reads_the_line_at_its_position() -> None:
    replay = b'{"plan": "one"}\n{"plan": "two"}\n'
    assert _decided(replay, model_state={"position": 1}).result["text"] == "two"


def test_the_end_of_the_replay_ends_the_job_and_takes_nothing() -> None:
    replay = b'{"plan": "one"}\n'
    claim = claim_of(job_of(replay), model_state={"position": 1})
    decider = decider_of(replay)
    decider.prepare(claim)
    assert decider.estimate(claim) == Amounts()
    done = decide(claim, decider)
    assert isinstance(done, Completion)
    assert (done.end, done.next, done.spent) == ("replay_exhausted", None, Amounts())


def test_the_estimate_is_exactly_what_the_next_line_takes() -> None:
    replay = b'{"plan": "one"}\n{"plan": "two"' + USAGE
    claim = claim_of(job_of(replay), model_state={"position": 1})
    decider = decider_of(replay)
    with pytest.raises(NotPrepared):
        decider.estimate(claim)
    decider.prepare(claim)
    assert decider.estimate(claim) == SPENT


@pytest.mark.parametrize("error", ["timeout", "rate_limited", "malformed"])
def test_a_failed_call_is_billed_and_the_next_attempt_reads_the_next_line(error: str) -> None:
    replay = f'{{"error": "{error}"'.encode() + USAGE
    failed = decide(claim_of(job_of(replay), attempt=2), decider_of(replay))
    assert isinstance(failed, GiveBack)
    assert failed.spent == SPENT - Amounts(steps=1)
    assert failed.model_state == {"position": 1}
    assert failed.exhausted == "model_error"
    assert failed.delay_seconds == pytest.approx(0.75)
    assert failed.events[0].body["code"] == error


def test_usage_over_the_hold_is_recorded_and_left_to_the_ledger_to_carry() -> None:
    replay = b'{"plan": "one"' + USAGE
    done = decide(claim_of(job_of(replay), held=SPENT - Amounts(input_tokens=30)), decider_of(replay))
    assert isinstance(done, Completion)
    assert done.spent == SPENT
    assert done.events[-1].kind == "estimate_exceeded"
    assert done.events[-1].body == {"input_tokens": {"held": 70, "took": 100}}


def test_a_finish_with_bad_arguments_is_a_bad_call_like_any_other() -> None:
    done = _decided(b'{"tool": "finish", "args": {"verdict": "good"}}')
    assert done.next is not None
    assert (done.next.kind, done.next.input["name"], done.job_state) == ("act", "finish", None)


@pytest.mark.parametrize(
    "job",
    [
        job_of(b'{"plan": "known to nobody"}'),
        job_of(None),
        job_of(b'{"plan": "one"}', model="openai:something"),
    ],
)
def test_a_model_that_cannot_be_asked_ends_the_job(job: object) -> None:
    claim = claim_of(job)  # type: ignore[arg-type]
    decider = decider_of(b'{"plan": "one"}')
    done = decide(claim, decider)
    assert isinstance(done, Completion)
    assert done.end == "model_error"
    assert decider.estimate(claim) == Amounts()


def test_a_stored_replay_that_does_not_parse_ends_the_job() -> None:
    done = _decided(b'{"plan": "one"}\nnonsense')
    assert done.end == "model_error"
    assert "line 2" in done.result["ended"]


def test_latency_is_waited_for() -> None:
    started = time.monotonic()
    _decided(b'{"plan": "slow", "latency_ms": 120}')
    assert time.monotonic() - started >= 0.12


def test_a_stop_from_outside_ends_the_wait() -> None:
    replay = b'{"plan": "slow", "latency_ms": 60000}'
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    started = time.monotonic()
    with pytest.raises(Stopped):
        decide(claim_of(job_of(replay)), decider_of(replay), stop)
    assert time.monotonic() - started < 30


def test_the_deadline_ends_the_wait_and_the_job() -> None:
    done = _decided(b'{"plan": "slow", "latency_ms": 60000}', remaining_ms=50)
    assert (done.end, done.next) == ("budget:deadline", None)


def test_delays_double_up_to_a_bound_and_are_shortened_by_half_at_most() -> None:
    assert [Backoff(random=lambda: 0.0).delay_seconds(n) for n in (1, 2, 3, 50)] == [0.5, 1.0, 2.0, 30.0]
    assert Backoff(random=lambda: 0.999).delay_seconds(3) == pytest.approx(1.0, rel=0.01)
    assert Backoff(random=lambda: 0.999).delay_seconds(1, at_least_seconds=7.0) == 7.0


def test_an_agent_in_a_circle_is_asked_no_more_and_holds_nothing() -> None:
    replay = b'{"plan": "again"}\n'
    claim = claim_of(job_of(replay), recent=("a", "b") * 3)
    decider = decider_of(replay)
    assert decider.estimate(claim) == Amounts()
    done = decide(claim, decider)
    assert isinstance(done, Completion)
    assert (done.end, done.spent, done.model_state) == ("no_progress", Amounts(), None)
    assert "the last 2 turns were made 3 times in a row" in done.result["ended"]


def test_a_circle_of_refused_calls_ends_for_the_rule() -> None:
    replay = b'{"plan": "again"}\n'
    done = decide(claim_of(job_of(replay), recent=("!a",) * 6), decider_of(replay))
    assert isinstance(done, Completion)
    assert done.end == "policy_denied"


def test_a_plan_leaves_a_fingerprint_and_a_call_does_not() -> None:
    same, other = (_decided(b'{"plan": "%s"}' % text).mark for text in (b"look", b"think"))
    assert same is not None
    assert same == _decided(b'{"plan": "look"}').mark
    assert same != other
    assert _decided(b'{"tool": "read_file", "args": {"path": "a.py"}}').mark is None
