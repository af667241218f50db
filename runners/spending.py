"""What a step may take of sandbox time, how much it took, and which limit it was that cut a command short.

A command runs for its own time limit at most, for what the step holds of `sandbox_ms`, and until the job's deadline. If
one of the last two was the shorter and the command ran into it, the job is out of budget, not the command too slow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ledger.errors import Permanent
from ledger.records.budget import Amounts
from ledger.records.job import Reason
from ledger.records.step import Claim
from policy.tools import SANDBOX_GRACE_MS, cost_bound

MIN_RUN_MS = 1_000
"""The least sandbox time that is asked for; with less nothing useful can run."""


class OutOfBudget(Permanent):
    """The budget of the job is used up."""

    def __init__(self, reason: Reason) -> None:
        """`reason` is budget:sandbox_ms or budget:deadline."""
        self.reason: Reason = reason
        what = "deadline" if reason == "budget:deadline" else "sandbox_seconds"
        super().__init__(f"the command was cut short by the job's {what}")


@dataclass(frozen=True)
class Allowed:
    """What one command may take, in milliseconds, and the reason if that is less than its own limit."""

    deadline_ms: int
    cut_by: Reason | None


@dataclass
class SandboxTime:
    """The sandbox time of one claim, counted from its start."""

    claim: Claim
    spent_ms: int = 0
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.claim.remaining_ms / 1_000

    def allow(self, timeout_seconds: float) -> Allowed:
        """What the next command may take. Raises OutOfBudget when nothing is left for it."""
        wanted = round(timeout_seconds * 1_000)
        held = self.claim.held.sandbox_ms - self.spent_ms
        remaining = int((self._until - time.monotonic()) * 1_000)
        least = min(wanted, held, remaining)
        if least >= wanted:
            return Allowed(wanted, None)
        cut_by: Reason = "budget:sandbox_ms" if held <= remaining else "budget:deadline"
        if least < min(wanted, MIN_RUN_MS):
            raise OutOfBudget(cut_by)
        return Allowed(least, cut_by)

    def took(self, run_ms: int) -> None:
        """Counts a command that took `run_ms`."""
        self.spent_ms += run_ms

    def amounts(self, tool_calls: int = 0) -> Amounts:
        """What the step spent, never more than it holds."""
        return Amounts(tool_calls=tool_calls, sandbox_ms=min(self.spent_ms, self.claim.held.sandbox_ms))


def estimate(claim: Claim) -> Amounts:
    """The most that an act, verify or publish step takes: what its claim holds. Pure and quick.

    Time beyond what the account has is not asked for, but at least MIN_RUN_MS is, so that a step that needs a sandbox
    is refused by the ledger when there is none left.
    """
    if claim.kind == "act":
        call = claim.input
        bound = cost_bound(str(call.get("name")), call.get("arguments") or {}, claim.job)
        return _within(bound, claim.free.sandbox_ms)
    if claim.kind == "verify":
        on_head = claim.input.get("on") == "head"
        free = claim.free + claim.reserve if on_head else claim.free
        return _within(Amounts(sandbox_ms=_verification_ms(claim, on_head)), free.sandbox_ms)
    return Amounts()


def _verification_ms(claim: Claim, on_head: bool) -> int:
    runs = [claim.job.acceptance, *([claim.job.tests] if on_head else [])]
    return sum(round(run.timeout_seconds * 1_000) + SANDBOX_GRACE_MS for run in runs if run is not None)


def _within(bound: Amounts, free_ms: int) -> Amounts:
    if not bound.sandbox_ms:
        return bound
    return bound.model_copy(update={"sandbox_ms": max(MIN_RUN_MS, min(bound.sandbox_ms, free_ms))})
