"""What the decide step knows of a model: two questions, one reply, and a closed set of failures.

A model keeps no memory of its own between calls. What it wants to remember (a replay's position, a provider's
response id) it returns as `model_state`, which the ledger keeps with the agent, so that any decide worker can go on
where another one died. Every failure says what the failed attempt took, because a provider bills those too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ledger.errors import PatchyardError, Permanent, Temporary
from ledger.records.budget import Amounts
from ledger.records.decision import Decision, Usage
from ledger.records.job import JobSpec


@dataclass(frozen=True)
class Turn:
    """One turn that a model is asked for.

    `model_state` is what the model returned with its last reply, `remaining_ms` the time left until the job's deadline
    and `stop` an event that ends the wait for an answer: the job was cancelled, or the lease of the step was lost.
    """

    job: JobSpec
    model_state: Mapping[str, Any]
    remaining_ms: int
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Reply:
    """A decision, and the state to come back with on the next turn."""

    decision: Decision
    model_state: dict[str, Any]


class Model(Protocol):
    """A source of decisions."""

    def estimate(self, turn: Turn) -> Amounts | None:
        """The most that the next call can take, `steps` left out; None when there is no call to make.

        Pure and quick: it runs inside a transaction. Raises NotPrepared when it needs something first, which `prepare`
        gets outside of any transaction, and ModelUnusable.
        """

    def prepare(self, turn: Turn) -> None:
        """Fetch what `estimate` and `decide` need for this job. Raises Temporary errors of what it fetches from."""

    def decide(self, turn: Turn) -> Reply:
        """One decision. Raises ModelFailure, ModelUnusable, Exhausted, Stopped or OutOfTime."""


class NotPrepared(PatchyardError):
    """The model needs something fetched before it can be asked for an estimate."""


class ModelFailure(Temporary):
    """A call to the model failed in a way that may pass.

    `code` is the failure's name in events, `usage` what the failed attempt took nevertheless, `model_state`, if given,
    where the next attempt starts, and `retry_after_seconds` the least that the provider wants us to wait.
    """

    code = "failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        usage: Usage | None = None,
        model_state: dict[str, Any] | None = None,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message, retry_after_seconds)
        self.usage = usage or Usage()
        self.model_state = model_state


class ModelTimeout(ModelFailure):
    """The model did not answer in time."""

    code = "timeout"


class RateLimited(ModelFailure):
    """The model's provider refused the call for now."""

    code = "rate_limited"


class MalformedReply(ModelFailure):
    """The model's reply is not a decision."""

    code = "malformed"


class ModelUnusable(Permanent):
    """This model cannot be asked at all."""


class Exhausted(Permanent):
    """The replay has no further decision."""


class Stopped(Permanent):
    """The wait for the model was ended from outside."""


class OutOfTime(Permanent):
    """The job's deadline passed while the model was asked."""


def amounts_of(usage: Usage) -> Amounts:
    """What a call took, as amounts of an account."""
    return Amounts(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_microusd=usage.cost_microusd,
    )
