"""Random histories over the ledger's functions: whatever happens in whatever order, its invariants hold.

Workers claim, finish, give back, die (a lease that runs out stands for that), wake up late and repeat
themselves; users cancel; the sweep runs at any time. After every step of a history the database is looked at.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ledger.batches import request_cancel, submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs, ready_offers, sweep_leases
from ledger.errors import LeaseLost
from ledger.events import broken_links
from ledger.reads import find_job, job_agents, job_steps
from ledger.records.budget import Amounts, Budget
from ledger.records.job import TERMINAL, BatchSpec, JobState
from ledger.records.step import Claim, Completion, NextStep
from ledger.steps import MAX_ATTEMPTS, claim_step, complete_step, give_back, renew_leases
from tests.ledger.conftest import job_spec

BUDGET = Budget(steps=6, tool_calls=4, input_tokens=60, output_tokens=9, cost_usd=0.001, sandbox_seconds=2)
amounts = st.builds(Amounts, steps=st.integers(0, 2), input_tokens=st.integers(0, 25), sandbox_ms=st.integers(0, 900))
batch_numbers = iter(range(10**9))


@dataclass
class Seen:
    """What the history has seen of one job: its state once terminal, and outcomes that were accepted."""

    terminal: JobState | None = None
    accepted: dict[int, int] = field(default_factory=dict)


class LedgerHistory(RuleBasedStateMachine):
    """A history of one batch."""

    database: Database
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        name = f"history-{next(batch_numbers)}"
        self.batch = submit_batch(
            self.database, BatchSpec(name=name), [job_spec(f"j{n}", budget=BUDGET) for n in range(2)]
        ).batch_id
        self.jobs = {find_job(self.database, f"{name}/j{n}").id: Seen() for n in range(2)}
        admit_jobs(self.database, capacity=10**6)

    def _ready_steps(self) -> list[int]:
        return [s.id for job in self.jobs for s in job_steps(self.database, job) if s.state == "ready"]

    @rule(target=claims, pick=st.integers(0, 9), hold=amounts, dies=st.booleans())
    def claim(self, pick: int, hold: Amounts, dies: bool) -> Claim | None:
        ready = self._ready_steps()
        if not ready:
            return None
        step = ready[pick % len(ready)]
        claim = claim_step(
            self.database, step, owner="w", lease_seconds=0.2 if dies else 600, estimate=lambda _claim: hold
        )
        if dies and claim is not None:
            time.sleep(0.21)
        return claim

    @rule(claim=claims, took=amounts, kind=st.sampled_from(["decide", "act", "verify", "publish"]), twice=st.booleans())
    def complete(self, claim: Claim | None, took: Amounts, kind: str, twice: bool) -> None:
        if claim is None:
            return
        completion = Completion(
            result={},
            spent=took,
            next=None if claim.cancelling else NextStep.model_validate({"kind": kind}),
            end=claim.end_with if claim.cancelling else None,
        )
        with suppress(LeaseLost):
            offer = complete_step(self.database, claim, completion)
            self._accept(claim)
            if twice and offer is not None:
                assert complete_step(self.database, claim, completion) == offer

    def _accept(self, claim: Claim) -> None:
        accepted = self.jobs[claim.job_id].accepted
        assert accepted.get(claim.step_id, claim.fence) == claim.fence, "two leases completed one step"
        accepted[claim.step_id] = claim.fence

    @rule(claim=claims, reason=st.sampled_from(["no_progress", "verified", "empty_patch"]))
    def finish(self, claim: Claim | None, reason: str) -> None:
        if claim is None:
            return
        end = claim.end_with if claim.cancelling else reason
        with suppress(LeaseLost):
            complete_step(self.database, claim, Completion.model_validate({"result": {}, "end": end}))
            self._accept(claim)

    @rule(claim=claims, took=amounts)
    def hand_back(self, claim: Claim | None, took: Amounts) -> None:
        if claim is not None:
            with suppress(LeaseLost):
                give_back(self.database, claim, why="busy", delay_seconds=0, spent=took)

    @rule(claim=claims)
    def renew(self, claim: Claim | None) -> None:
        if claim is not None:
            renew_leases(self.database, [(claim.step_id, claim.fence)], 600)

    @rule()
    def sweep(self) -> None:
        sweep_leases(self.database)
        ready_offers(self.database, limit=100, stale_seconds=0)

    @rule(pick=st.integers(0, 1))
    def cancel(self, pick: int) -> None:
        request_cancel(self.database, by="somebody", job_id=sorted(self.jobs)[pick])

    @invariant()
    def everything_holds(self) -> None:
        for job_id, seen in self.jobs.items():
            job = find_job(self.database, str(job_id))
            steps = job_steps(self.database, job_id)
            (agent,) = job_agents(self.database, job_id)
            account = agent.account
            assert account.granted == account.spent + account.held + account.delegated + account.free
            assert min(account.spent.as_tuple() + account.held.as_tuple() + account.free.as_tuple()) >= 0
            leased = [step for step in steps if step.state == "leased"]
            assert len(leased) <= 1
            if not leased:
                assert account.held == Amounts()
            assert max(step.attempt for step in steps) <= MAX_ATTEMPTS + 1 or any(s.attempt for s in steps)
            if seen.terminal is not None:
                assert job.state == seen.terminal, "a terminal state changed"
            if job.state in TERMINAL:
                seen.terminal = job.state
                assert job.reason is not None
                assert not [step for step in steps if step.state in ("ready", "leased")]
            else:
                assert [step for step in steps if step.state in ("ready", "leased")]
            assert broken_links(self.database, job_id) == []


@pytest.mark.slow
def test_random_histories_keep_every_invariant(database: Database) -> None:
    LedgerHistory.database = database
    run_state_machine_as_test(
        LedgerHistory,
        settings=settings(
            max_examples=25,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
