"""What a worker does with one hint: claim, work under a kept lease, write the outcome once, send what follows.

A hint is only believed to be two values. Whatever goes wrong ends in one of four ways: the outcome is written; the step
is given back with a reason, a delay and what it took; the lease was lost and the result is thrown away; or, if even
that cannot be written, the lease runs out and the sweep gives the step to another worker. The ledger being away is
waited for. A write whose outcome is unknown is simply repeated: the ledger knows whether it is in place.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from ledger.connect import Database
from ledger.errors import LeaseLost, LedgerUnavailable, NoRoom, PatchyardError, Permanent, Temporary
from ledger.faults import crash_point
from ledger.records.budget import Amounts
from ledger.records.job import Reason
from ledger.records.step import QUEUE_OF, Claim, Completion, Event, Offer, Queue, StepKind
from ledger.steps import claim_step, complete_step, give_back
from patchyard.lease_keeper import HeldLease, LeaseKeeper
from patchyard.logs import bound_to
from patchyard.room_watch import PAUSE_SECONDS
from scheduler.decide import Backoff, GiveBack
from scheduler.dispatch import BrokerUnavailable, Send
from scheduler.models.model import NotPrepared

log = structlog.get_logger(__name__)

Outcome = Completion | GiveBack
_T = TypeVar("_T")
_CLAIM_TRIES = 3
_LEDGER_WAIT = Backoff(first_seconds=0.1, last_seconds=2.0)


class Interrupted(Permanent):
    """The work ended early because its `stop` was set."""

    def __init__(self, spent: Amounts) -> None:
        """`spent` is what it took until then."""
        super().__init__()
        self.spent = spent


class Work(Protocol):
    """How the steps of one kind are done."""

    def estimate(self, claim: Claim) -> Amounts:
        """The most that the step can take; pure and quick. NotPrepared when something has to be fetched first, NoRoom
        when nothing may be begun here: then the step is not claimed, and stays for others or for later."""

    def prepare(self, claim: Claim) -> None:
        """Fetch what the estimate needs, outside of any transaction."""

    def do(self, claim: Claim, stop: threading.Event) -> Outcome:
        """Do the step. Raises Interrupted once `stop` is set, Temporary errors, LeaseLost."""

    def exhausted_reason(self, error: PatchyardError) -> Reason:
        """Why a job ends whose step failed with `error` at its last attempt."""


@dataclass(frozen=True)
class StepWorker:
    """Handles hints for the steps of the kinds in `works`. Safe to use from many threads.

    `send` sends the next step's message, `ring` tells the scheduler that there may be something to admit. `stopping` is
    set when this process has to end: nothing new is claimed then, and the ledger is waited for no longer. `slots` are
    the most steps of each queue at once, for a worker whose threads serve several queues.
    """

    db: Database
    works: Mapping[StepKind, Work]
    keeper: LeaseKeeper
    owner: str
    lease_seconds: float
    send: Send
    ring: Callable[[], None]
    slots: Mapping[Queue, int]
    stopping: threading.Event = field(default_factory=threading.Event)
    backoff: Backoff = field(default_factory=Backoff)
    _free: dict[str, threading.Semaphore] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._free.update({queue: threading.Semaphore(amount) for queue, amount in self.slots.items()})

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues whose steps this worker may do."""
        return tuple(dict.fromkeys(QUEUE_OF[kind] for kind in self.works))

    def handle(self, step_id: int, queue: str) -> None:
        """Does what the hint leads to, if it leads to anything. Raises nothing but what ends the process."""
        if queue not in self.queues:
            log.warning("hint_dropped", why="another queue's", step=step_id, queue=queue[:50])
            return
        try:
            with self._free[queue]:
                self._claim_and_work(step_id)
        except LeaseLost:
            log.warning("result_thrown_away", step=step_id, why="the lease was lost")
        except LedgerUnavailable as error:
            log.warning("step_left_to_the_sweep", step=step_id, why=error.message)
        except Exception:  # the edge of the process: one step must not end the worker
            log.exception("step_broke", step=step_id)

    def _claim_and_work(self, step_id: int) -> None:
        claimed_at = time.monotonic()
        claim = self._claim(step_id)
        if claim is None:
            log.debug("nothing_to_claim", step=step_id)
            return
        crash_point("claim.after")
        with bound_to(claim), self.keeper.holding(claim, claimed_at) as lease:
            self._work_on(claim, lease)

    def _claim(self, step_id: int) -> Claim | None:
        asked: list[Claim] = []

        def estimate(claim: Claim) -> Amounts:
            asked.append(claim)
            return self.works[claim.kind].estimate(claim)

        for _ in range(_CLAIM_TRIES):
            if self.stopping.is_set():
                return None
            try:
                return self._when_ledger_is_there(
                    lambda: claim_step(
                        self.db,
                        step_id,
                        owner=self.owner,
                        lease_seconds=self.lease_seconds,
                        estimate=estimate,
                        queues=self.queues,
                    )
                )
            except NotPrepared:
                self.works[asked[-1].kind].prepare(asked[-1])
            except NoRoom as full:
                log.debug("nothing_begun", step=step_id, why=full.message)
                self.stopping.wait(PAUSE_SECONDS)
        return None

    def _work_on(self, claim: Claim, lease: HeldLease) -> None:
        started = time.monotonic()
        outcome = self._outcome(claim, lease)
        try:
            offer = self._write(claim, outcome)
        except (LeaseLost, LedgerUnavailable):
            raise
        except PatchyardError as error:
            # The ledger refuses this completion for good (the head moved, an object is too big).
            log.error("completion_refused", why=error.message)
            outcome = self._given_back(claim, error)
            offer = self._write(claim, outcome)
        log.info(
            "step_done" if isinstance(outcome, Completion) else "step_given_back",
            attempt=claim.attempt,
            ms=round((time.monotonic() - started) * 1000),
            **({"end": outcome.end} if isinstance(outcome, Completion) and outcome.end else {}),
            **({"why": outcome.why} if isinstance(outcome, GiveBack) else {}),
        )
        if offer is not None:
            self._send(offer)
        else:
            self.ring()

    def _outcome(self, claim: Claim, lease: HeldLease) -> Outcome:
        work = self.works[claim.kind]
        try:
            return work.do(claim, lease.stop)
        except LeaseLost:
            raise
        except Interrupted as stopped:
            return _interrupted(claim, lease, stopped)
        except PatchyardError as error:
            return self._given_back(claim, error)
        except Exception as error:  # the edge of the process: a defect is tried again, bounded
            log.exception("work_broke")
            last_line = traceback.format_exception_only(error)[-1].strip()
            return GiveBack(
                why=last_line,
                delay_seconds=self.backoff.delay_seconds(claim.attempt),
                events=(Event(kind="worker_error", body={"error": last_line, "attempt": claim.attempt}),),
            )

    def _given_back(self, claim: Claim, error: PatchyardError) -> GiveBack:
        least = error.retry_after_seconds if isinstance(error, Temporary) else 0.0
        return GiveBack(
            why=error.message,
            delay_seconds=self.backoff.delay_seconds(claim.attempt, least),
            exhausted=self.works[claim.kind].exhausted_reason(error),
            events=(
                Event(
                    kind="step_failed",
                    body={"error": type(error).__name__, "why": error.message, "attempt": claim.attempt},
                ),
            ),
        )

    def _write(self, claim: Claim, outcome: Outcome) -> Offer | None:
        if isinstance(outcome, Completion):
            completion = outcome
            return self._when_ledger_is_there(lambda: complete_step(self.db, claim, completion))
        back = outcome
        self._when_ledger_is_there(
            lambda: give_back(
                self.db,
                claim,
                why=back.why,
                delay_seconds=back.delay_seconds,
                spent=back.spent,
                model_state=back.model_state,
                exhausted=back.exhausted,
                counted=back.counted,
                events=back.events,
            )
        )
        return None

    def _when_ledger_is_there(self, ask: Callable[[], _T]) -> _T:
        """Repeat until the ledger answers. Raises LedgerUnavailable once this process has to end."""
        attempt = 0
        while True:
            try:
                return ask()
            except LedgerUnavailable:
                attempt += 1
                if self.stopping.wait(_LEDGER_WAIT.delay_seconds(attempt)):
                    raise

    def _send(self, offer: Offer) -> None:
        try:
            self.send(offer)
        except BrokerUnavailable as error:
            log.warning("next_step_not_sent", next=offer.step_id, why=error.message)


def _interrupted(claim: Claim, lease: HeldLease, stopped: Interrupted) -> Outcome:
    if lease.why == "cancel":
        return Completion(
            result={"ended": "cancelled"},
            spent=stopped.spent,
            end="cancelled_by_user",
            events=(Event(kind="step_cancelled", body={"attempt": claim.attempt}),),
        )
    if lease.why == "shutdown":
        return GiveBack(why="the worker had to end", delay_seconds=0.0, spent=stopped.spent, counted=False)
    raise LeaseLost
