"""What the ledger keeps of external effects: intent and receipt of each, and the turns at the forges.

An external effect is an action whose identity is its idempotency key, so that a second intent under the same key with
another payload is an error (`ActionConflict`) and not a second effect. Every write carries the lease. Turns are shared
by all workers: they keep the gap between two writes to one forge and its limits a minute and an hour, whoever writes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ledger.actions import Action, intend
from ledger.connect import Database
from ledger.records.base import Record, canonical_json, sha256_hex
from ledger.records.step import Claim
from ledger.storable import storable

EffectOutcome = Literal["done", "refused", "uncertain"]


class TurnLimits(Record):
    """How often one forge may be written to; None is no limit."""

    gap_seconds: float = Field(default=1.1, ge=0)
    per_minute: int | None = Field(default=None, ge=1)
    per_hour: int | None = Field(default=None, ge=1)


def effect_action_id(claim: Claim, key: str) -> str:
    """The action's identity: one agent's effect under one idempotency key."""
    return sha256_hex(canonical_json(["external", claim.agent_id, key]))


def intend_effect(db: Database, claim: Claim, *, key: str, kind: str, described: dict[str, Any]) -> Action:
    """Writes the intent of an external effect, or finds it. LeaseLost; ActionConflict when `described` differs.

    `described` says what shall be in the world (with a fingerprint of what is too long to be told), and no secret.
    """
    return intend(
        db,
        claim,
        action_id=effect_action_id(claim, key),
        tool=kind,
        arguments={"key": key, **described},
        effect="external",
        before_tree=claim.head_tree,
    )


def known_effect(db: Database, claim: Claim, *, key: str) -> Action | None:
    """What an earlier attempt left of the effect, or None if it did not come to an intent. LeaseLost."""
    action_id = effect_action_id(claim, key)
    rows = db.run("known_effect", step=claim.step_id, fence=claim.fence, action=action_id)
    if not rows:
        return None
    return Action(action_id=action_id, state=rows[0]["state"], receipt=rows[0]["receipt"], after_tree=None, found=True)


def settle_effect(db: Database, claim: Claim, action_id: str, outcome: EffectOutcome, told: dict[str, Any]) -> None:
    """Writes an effect's receipt, refusal or evidence. LeaseLost; ActionConflict if it was settled otherwise."""
    db.run(
        "settle_effect",
        step=claim.step_id,
        fence=claim.fence,
        action=action_id,
        outcome=outcome,
        told=storable(told),
    )


def check_lease(db: Database, claim: Claim) -> None:
    """LeaseLost if the lease is gone."""
    db.run("check_lease", step=claim.step_id, fence=claim.fence)


def postpone_step(db: Database, claim: Claim, *, why: str, delay_seconds: float) -> None:
    """Gives back a step that waits for its turn; the attempt is not counted. LeaseLost."""
    db.run("postpone_step", step=claim.step_id, fence=claim.fence, delay=delay_seconds, why=storable(why).obj)


def take_turn(db: Database, claim: Claim, *, forge: str, holder: str, limits: TurnLimits, use_it: bool) -> float:
    """Seconds until `holder` may write to `forge`; 0.0 is now, and uses the turn up when `use_it`. LeaseLost.

    The first call plans a turn behind those of all others; it is kept until it is used.
    """
    row = db.run(
        "take_turn",
        step=claim.step_id,
        fence=claim.fence,
        forge=forge,
        holder=holder,
        gap=limits.gap_seconds,
        per_minute=limits.per_minute,
        per_hour=limits.per_hour,
        use_it=use_it,
    )[0]
    return float(row["wait_seconds"])


def close_forge(db: Database, forge: str, *, seconds: float, why: str) -> None:
    """Nobody writes to `forge` for so long, as it asked; an earlier end than the known one changes nothing."""
    db.run("close_forge", forge=forge, seconds=seconds, why=storable(why).obj)


def closed_seconds(db: Database, forge: str) -> float:
    """For how long `forge` still wants to be left alone."""
    return float(db.run("forge_closed", forge=forge)[0]["seconds"])
