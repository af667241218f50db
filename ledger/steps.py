"""Leases on steps: claimed with a fence, renewed while work goes on, ended by exactly one write.

Every write here says `step, fence, leased, not expired` in the statement itself; a worker that was paused past its
lease changes nothing and gets `LeaseLost`. A write whose commit had an unknown outcome may simply be repeated: it asks
the ledger first whether it is in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from psycopg.rows import DictRow
from pydantic import ValidationError

from ledger.connect import Database, amounts_literal, json_or_none, parse_amounts
from ledger.errors import BudgetExhausted, LeaseLost
from ledger.faults import crash_point
from ledger.objects import store_object
from ledger.prepared import PreparedConnection
from ledger.records.budget import Amounts
from ledger.records.job import JobSpec, Reason
from ledger.records.step import Claim, Completion, Event, Offer, Queue
from ledger.storable import storable

MAX_ATTEMPTS = 5
MARKS_KEPT = 12
"""How many fingerprints of turns are kept of an agent."""
ALL_QUEUES: tuple[Queue, ...] = ("decide", "sandbox", "publish")

Renewed = Literal["kept", "lost", "cancel"]


def claim_step(
    db: Database,
    step_id: int,
    *,
    owner: str,
    lease_seconds: float,
    estimate: Callable[[Claim], Amounts],
    queues: Sequence[Queue] = ALL_QUEUES,
) -> Claim | None:
    """Takes the lease of a ready step and holds what `estimate` says it may cost, in one transaction.

    None when there is nothing to do for this worker: unknown, not ready, not due, another queue's, or the job was
    ended by this very claim (deadline, budget, attempts, cancel). `estimate` must be pure and quick.
    """
    try:
        with db.transaction() as connection:
            rows = connection.call(
                "lease_step",
                step=step_id,
                owner=owner,
                seconds=lease_seconds,
                queues=list(queues),
                max_attempts=MAX_ATTEMPTS,
            )
            if not rows:
                return None
            return _with_hold(connection, _claim(step_id, rows[0]), estimate)
    except ValidationError as unreadable:
        first = unreadable.errors(include_url=False, include_input=False)[0]
        why = f"this worker cannot read the job: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        db.run("note_unreadable", step=step_id, why=why, max_attempts=MAX_ATTEMPTS)
        return None
    except BudgetExhausted as short:
        db.run("refuse_claim", step=step_id, resource=short.resource)
        return None


def _claim(step_id: int, row: DictRow) -> Claim:
    free, reserve = parse_amounts(row.pop("free")), parse_amounts(row.pop("reserve"))
    kept = reserve.at_most(free)
    ending: Reason | None = row.pop("ending")
    return Claim(
        step_id=step_id,
        job=_job_spec(row.pop("spec")),
        free=free - kept,
        reserve=kept,
        cancelling=ending is not None,
        end_with=ending or "cancelled_by_user",
        recent=tuple((row.pop("recent") or "").split()),
        **row,
    )


@lru_cache(maxsize=256)
def _job_spec(text: str) -> JobSpec:
    # A worker claims the steps of the same jobs again and again.
    return JobSpec.model_validate_json(text)


def _with_hold(connection: PreparedConnection, claim: Claim, estimate: Callable[[Claim], Amounts]) -> Claim:
    if claim.cancelling:
        return claim
    wanted = estimate(claim)
    if wanted == Amounts():
        return claim
    from_reserve = claim.kind == "verify" and claim.input.get("on") == "head"
    connection.call(
        "hold",
        step=claim.step_id,
        fence=claim.fence,
        wanted=amounts_literal(wanted),
        from_reserve=from_reserve,
    )
    return claim.model_copy(update={"held": wanted})


def renew_leases(db: Database, held: Sequence[tuple[int, int]], lease_seconds: float) -> dict[int, Renewed]:
    """Prolongs leases, given as (step id, fence). `cancel` is kept too, but its job was cancelled."""
    if not held:
        return {}
    rows = db.run(
        "renew_leases",
        ids=[step for step, _ in held],
        fences=[fence for _, fence in held],
        seconds=lease_seconds,
    )
    kept: dict[int, Renewed] = {row["step_id"]: "cancel" if row["cancelling"] else "kept" for row in rows}
    return {step: kept.get(step, "lost") for step, _ in held}


def lease_owners(db: Database, prefix: str) -> list[str]:
    """The owners of leases whose name starts so."""
    return [row["owner"] for row in db.run("lease_owners", prefix=prefix)]


def forfeit_leases(db: Database, owner: str) -> int:
    """Ends the leases of an owner that is known to be dead, and returns how many; the next sweep takes them.

    Only for a caller who has seen the death: work of a live owner would be done twice, though written once.
    """
    return int(db.run("forfeit_leases", owner=owner)[0]["forfeited"])


def complete_step(db: Database, claim: Claim, completion: Completion) -> Offer | None:
    """Writes the outcome of a step, settles its hold and adds the step that follows, in one transaction.

    Returns the offer of the next step, which the caller sends, or None when the job ended or the step is delayed.
    LeaseLost if the lease is gone, HeadMoved if the head is not the claim's. Repeated after success it returns the
    same.
    """
    if (completion.next is None) == (completion.end is None):
        raise ValueError("a completion has either a next step or an end")
    try:
        with db.transaction() as connection:
            packs = [store_object(connection, new.kind, new.data) for new in completion.objects if new.kind == "pack"]
            for new in completion.objects:
                if new.kind != "pack":
                    store_object(connection, new.kind, new.data)
            rows = connection.call("complete_step", **_completion_arguments(claim, completion, packs))
            crash_point("complete.before_commit")
    except LeaseLost:
        return _completed_before(db, claim)
    crash_point("complete.after_commit")
    return Offer(step_id=rows[0]["step_id"], queue=rows[0]["queue"]) if rows else None


def _completed_before(db: Database, claim: Claim) -> Offer | None:
    rows = db.run("completed_by", step=claim.step_id, fence=claim.fence)
    if not rows:
        raise LeaseLost
    if rows[0]["next_id"] is None:
        return None
    return Offer(step_id=rows[0]["next_id"], queue=rows[0]["next_queue"])


def _completion_arguments(claim: Claim, completion: Completion, packs: list[str]) -> dict[str, Any]:
    follows = completion.next
    return {
        "step": claim.step_id,
        "fence": claim.fence,
        "outcome": storable(completion.result),
        "took": amounts_literal(completion.spent),
        "next_kind": follows.kind if follows else None,
        "next_input": storable(follows.input) if follows else None,
        "next_delay": follows.delay_seconds if follows else 0,
        "end_reason": completion.end,
        "new_state": completion.job_state,
        "old_head": claim.head_tree,
        "new_head": completion.head_tree,
        "packs": packs,
        "told": event_array(completion.events),
        "action": completion.action_id,
        "receipt": storable(completion.receipt or {}) if completion.action_id else None,
        "action_state": completion.action_state,
        "model_state": json_or_none(completion.model_state),
        "verdict": storable(completion.verdict) if completion.verdict is not None else None,
        "patch": completion.patch_sha256,
        "published": storable(completion.published) if completion.published is not None else None,
        "changed": completion.files_changed,
        "mark": completion.mark,
        "marks_kept": MARKS_KEPT,
    }


def event_array(events: Iterable[Event]) -> Any:
    """Events as the JSON array that the engine appends."""
    return storable([{"kind": event.kind, "body": event.body} for event in events])


def give_back(
    db: Database,
    claim: Claim,
    *,
    why: str,
    delay_seconds: float,
    spent: Amounts = Amounts(),  # noqa: B008  (frozen)
    model_state: dict[str, Any] | None = None,
    exhausted: Reason = "too_many_attempts",
    counted: bool = True,
    events: Sequence[Event] = (),
) -> None:
    """Makes a step ready again after `delay_seconds`; with its last attempt used up, the job ends with `exhausted`.

    An attempt that is not `counted` may be made again: the step is not to blame for its end.

    LeaseLost if the lease is gone; repeated after success it does nothing.
    """
    try:
        db.run(
            "give_back",
            step=claim.step_id,
            fence=claim.fence,
            why=storable(why).obj,
            delay=delay_seconds,
            took=amounts_literal(spent),
            model_state=json_or_none(model_state),
            exhausted=exhausted,
            max_attempts=MAX_ATTEMPTS,
            counted=counted,
            told=event_array(events),
        )
    except LeaseLost:
        if not db.run("given_back_by", step=claim.step_id, fence=claim.fence):
            raise
