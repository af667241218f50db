"""The decide step: one turn of an agent's model, and what follows from it.

A decision only proposes. `plan` leads to the next turn, a tool call to an act step that may refuse it, `final` and the
tool `finish` to the verifier: the model can ask for verification and never grant it. The step is settled with what the
call took. A failed call is billed, counted as an attempt of the same step and tried again later; the ledger bounds the
attempts. Nothing here touches a workspace.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledger.faults import crash_point
from ledger.records.base import Record
from ledger.records.budget import RESOURCES, Amounts
from ledger.records.decision import Decision
from ledger.records.job import JobState, Reason
from ledger.records.step import Claim, Completion, Event, NextStep
from ledger.records.tool import ToolCall
from policy.errors import ToolFailure
from policy.progress import find_circle, fingerprint
from policy.tools import contract_of
from scheduler.models.model import (
    Exhausted,
    Model,
    ModelFailure,
    ModelUnusable,
    NotPrepared,
    OutOfTime,
    Reply,
    Turn,
    amounts_of,
)

FINISH = "finish"
_SHOWN_CHARS = 2_000


class GiveBack(Record):
    """The step was not done: it is to be ready again after `delay_seconds`.

    `spent` is what the attempt took nevertheless. With the last attempt used up the job ends for `exhausted`; one
    that is not `counted` may be made again.
    """

    why: str
    delay_seconds: float
    spent: Amounts = Amounts()
    model_state: dict[str, Any] | None = None
    exhausted: Reason = "too_many_attempts"
    counted: bool = True
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Backoff:
    """Delays that double from `first_seconds` to at most `last_seconds`, each shortened by up to half at random, so
    that many jobs refused at one moment do not come back at one moment.
    """

    first_seconds: float = 0.5
    last_seconds: float = 30.0
    random: Callable[[], float] = random.random

    def delay_seconds(self, attempt: int, at_least_seconds: float = 0.0) -> float:
        """The delay after `attempt` (counted from 1), never below `at_least_seconds`."""
        full = min(self.last_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 30))
        return max(at_least_seconds, full * (1 - self.random() / 2))


@dataclass(frozen=True)
class Decider:
    """The models of this process by the provider's name (the part of a job's `model` before the colon)."""

    models: Mapping[str, Model]
    backoff: Backoff = field(default_factory=Backoff)

    def estimate(self, claim: Claim) -> Amounts:
        """The most that the next turn of this claim can take. Raises NotPrepared; see `prepare`.

        Nothing is held when there is no call to make: the job then ends for its true reason, not for its budget.
        """
        if find_circle(claim.recent) is not None:
            return Amounts()
        try:
            call = self.model_of(claim).estimate(_turn(claim))
        except ModelUnusable:
            return Amounts()
        return call + Amounts(steps=1) if call is not None else Amounts()

    def prepare(self, claim: Claim) -> None:
        """Fetch what the estimate of this claim needs."""
        self.model_of(claim).prepare(_turn(claim))

    def model_of(self, claim: Claim) -> Model:
        """The model of the claim's job. Raises ModelUnusable."""
        provider = claim.job.model.partition(":")[0]
        try:
            return self.models[provider]
        except KeyError:
            raise ModelUnusable(f"no model provider {provider!r} in this version") from None


def decide(claim: Claim, decider: Decider, stop: threading.Event | None = None) -> Completion | GiveBack:
    """Ask the model of the claim's job for one decision. `stop` ends the wait for it.

    Raises Stopped when `stop` was set, and Temporary errors of what a model needs.
    """
    if (circle := find_circle(claim.recent)) is not None:
        return _ended(claim, "policy_denied" if circle.denied else "no_progress", circle.told())
    turn = _turn(claim, stop)
    try:
        reply = _ask(claim, decider, turn)
    except Exhausted as error:
        return _ended(claim, "replay_exhausted", error.message)
    except ModelUnusable as error:
        return _ended(claim, "model_error", error.message)
    except OutOfTime as error:
        # The call was cut off and may be billed nevertheless: what was held for it is spent.
        return _ended(claim, "budget:deadline", error.message, spent=claim.held)
    except ModelFailure as error:
        return _failed(claim, decider.backoff, error)
    crash_point("decide.after_model")
    return _settled(claim, reply, _follow(claim, reply.decision))


def _ask(claim: Claim, decider: Decider, turn: Turn) -> Reply:
    model = decider.model_of(claim)
    try:
        return model.decide(turn)
    except NotPrepared:
        model.prepare(turn)
        return model.decide(turn)


def _turn(claim: Claim, stop: threading.Event | None = None) -> Turn:
    return Turn(
        job=claim.job,
        model_state=claim.model_state,
        remaining_ms=claim.remaining_ms,
        stop=stop or threading.Event(),
    )


def call_id_of(claim: Claim) -> str:
    """The identity of the call that this turn proposes: one per turn of an agent, the same in every attempt."""
    return f"call_{claim.seq}"


def _follow(claim: Claim, decision: Decision) -> tuple[NextStep, JobState | None]:
    if decision.kind == "plan":
        return NextStep(kind="decide"), None
    if decision.kind == "final" or _is_finish(decision):
        return NextStep(kind="verify", input={"on": "head"}), "verifying"
    call = ToolCall(call_id=call_id_of(claim), name=decision.tool, arguments=decision.arguments)
    return NextStep(kind="act", input=call.plain()), None


def _is_finish(decision: Decision) -> bool:
    """Whether the call is a valid `finish`. One that is not goes to an act step like any bad call, and is refused."""
    if decision.tool != FINISH:
        return False
    try:
        contract_of(FINISH).parse(decision.arguments)
    except ToolFailure:
        return False
    return True


def _settled(claim: Claim, reply: Reply, follows: tuple[NextStep, JobState | None]) -> Completion:
    """The completion of a turn. The ledger carries what the call took beyond its hold, or ends the job for it."""
    decision = reply.decision
    took = amounts_of(decision.usage) + Amounts(steps=1)
    next_step, job_state = follows
    return Completion(
        result=_result(claim, decision),
        spent=took,
        next=next_step,
        job_state=job_state,
        model_state=reply.model_state,
        # What a call leads to is seen by its act step.
        mark=fingerprint({"plan": decision.text}, None, claim.head_tree) if decision.kind == "plan" else None,
        events=(Event(kind="decision", body=_shown(claim, decision)), *_overrun(claim, took)),
    )


def _failed(claim: Claim, backoff: Backoff, error: ModelFailure) -> GiveBack:
    took = amounts_of(error.usage)
    body = {"code": error.code, "message": error.message, "attempt": claim.attempt, "usage": error.usage.plain()}
    return GiveBack(
        why=f"model: {error.message}",
        delay_seconds=backoff.delay_seconds(claim.attempt, error.retry_after_seconds),
        spent=took,
        model_state=error.model_state,
        exhausted="model_error",
        events=(Event(kind="model_failed", body=body), *_overrun(claim, took)),
    )


def _ended(claim: Claim, reason: Reason, why: str, spent: Amounts | None = None) -> Completion:
    body = {"code": reason, "message": why, "attempt": claim.attempt}
    return Completion(
        result={"ended": why},
        spent=spent or Amounts(),
        end=reason,
        events=(Event(kind="model_ended", body=body),),
    )


def _result(claim: Claim, decision: Decision) -> dict[str, Any]:
    """What the step keeps. A call's arguments are the input of its act step; `finish` has none, so they stay here."""
    result: dict[str, Any] = {"kind": decision.kind, "usage": decision.usage.plain()}
    if decision.kind == "tool":
        result |= {"tool": decision.tool, "call_id": call_id_of(claim)}
        if decision.tool == FINISH:
            result["arguments"] = decision.arguments
    else:
        result["text"] = decision.text
    return result


def _shown(claim: Claim, decision: Decision) -> dict[str, Any]:
    body = _result(claim, decision)
    if "text" in body:
        body["text"] = body["text"][:_SHOWN_CHARS]
    body.pop("arguments", None)
    return body | {"model": claim.job.model}


def _overrun(claim: Claim, took: Amounts) -> tuple[Event, ...]:
    """An event for an estimate that was too low, naming each resource that took more than was held for it."""
    pairs = zip(RESOURCES, took.as_tuple(), claim.held.as_tuple(), strict=True)
    body = {name: {"held": held, "took": amount} for name, amount, held in pairs if amount > held}
    return (Event(kind="estimate_exceeded", body=body),) if body else ()
