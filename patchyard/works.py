"""Ties the kinds of steps to the rooms that do them: decide to the scheduler's models, the others to the runners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from ledger.errors import NoRoom, PatchyardError
from ledger.records.budget import Amounts
from ledger.records.job import Reason
from ledger.records.step import Claim, Completion
from patchyard.step_work import Interrupted, Outcome
from runners.effects.errors import NotMyTurn, RateLimited
from runners.runner import Runner, exhausted_reason
from runners.runner import Stopped as RunnerStopped
from runners.spending import estimate as runner_estimate
from scheduler.decide import Decider, GiveBack, decide
from scheduler.models.model import Stopped as ModelStopped


@dataclass(frozen=True)
class DecideWork:
    """Turns of models."""

    decider: Decider

    def estimate(self, claim: Claim) -> Amounts:
        """See Work."""
        return self.decider.estimate(claim)

    def prepare(self, claim: Claim) -> None:
        """See Work."""
        self.decider.prepare(claim)

    def do(self, claim: Claim, stop: threading.Event) -> Outcome:
        """See Work. A turn leaves nothing behind, so a job that has to end can end at once."""
        if claim.cancelling:
            return Completion(result={"ended": "nothing was left running"}, end=claim.end_with)
        try:
            return decide(claim, self.decider, stop)
        except ModelStopped:
            # The call may be billed although nobody waits for its answer.
            raise Interrupted(claim.held) from None

    def exhausted_reason(self, error: PatchyardError) -> Reason:
        """See Work."""
        return "too_many_attempts"


def _room_is_no_matter(_claim: Claim) -> None:
    """Where no disk is watched."""


@dataclass(frozen=True)
class RunnerWork:
    """Steps of the runners: act, verify, publish."""

    work: Callable[[Claim, Runner], Completion]
    runner: Runner
    require_room: Callable[[Claim], None] = _room_is_no_matter

    def estimate(self, claim: Claim) -> Amounts:
        """See Work. Raises NoRoom where the disk is too full to begin."""
        self.require_room(claim)
        return runner_estimate(claim)

    def prepare(self, claim: Claim) -> None:
        """See Work. Nothing has to be fetched."""

    def do(self, claim: Claim, stop: threading.Event) -> Outcome:
        """See Work."""
        try:
            return self.work(claim, replace(self.runner, cancelled=stop))
        except (NotMyTurn, RateLimited) as wait:
            # The forge's turns and limits are no fault of this step: waiting for them uses up no attempt.
            return GiveBack(why=wait.message, delay_seconds=wait.retry_after_seconds, counted=False)
        except NoRoom as full:
            # Nothing was begun. One that fills up in the middle counts: a job may want more than there is.
            return GiveBack(why=full.message, delay_seconds=full.retry_after_seconds, counted=False)
        except RunnerStopped as stopped:
            raise Interrupted(stopped.spent) from None

    def exhausted_reason(self, error: PatchyardError) -> Reason:
        """See Work."""
        return exhausted_reason(error)
