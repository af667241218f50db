"""Effects' book in the ledger: intents and receipts under one claim, and turns at the forges shared by all workers."""

from __future__ import annotations

from typing import Any, Literal

from ledger.connect import Database
from ledger.forges import check_lease, intend_effect, known_effect, settle_effect, take_turn
from ledger.records.step import Claim
from runners.effects.effect import Effect, Intent, fingerprint


class StepBook:
    """The ledger as the effects of one claimed step see it."""

    def __init__(self, db: Database, claim: Claim) -> None:
        self._db, self._claim = db, claim

    def known(self, effect: Effect) -> Intent | None:
        """As `effect.Book`."""
        action = known_effect(self._db, self._claim, key=effect.key)
        return None if action is None else Intent(action.action_id, action.state, action.receipt, found=True)

    def intend(self, effect: Effect) -> Intent:
        """As `effect.Book`."""
        described = {"fingerprint": fingerprint(effect), **_short(effect.described())}
        action = intend_effect(self._db, self._claim, key=effect.key, kind=effect.kind, described=described)
        return Intent(action.action_id, action.state, action.receipt, action.found)

    def settle(self, intent: Intent, outcome: Literal["done", "refused", "uncertain"], told: dict[str, Any]) -> None:
        """As `effect.Book`."""
        settle_effect(self._db, self._claim, intent.action_id, outcome, told)

    def turn_in_seconds(self, effect: Effect) -> float:
        """As `effect.Book`."""
        return self._turn(effect, use_it=False)

    def take_turn(self, effect: Effect) -> float:
        """As `effect.Book`."""
        return self._turn(effect, use_it=True)

    def _turn(self, effect: Effect, *, use_it: bool) -> float:
        turns = effect.turns
        if turns is None:
            check_lease(self._db, self._claim)
            return 0.0
        return take_turn(
            self._db, self._claim, forge=turns.forge, holder=effect.key, limits=turns.limits, use_it=use_it
        )


def _short(described: dict[str, Any]) -> dict[str, Any]:
    """Long texts are left to the fingerprint."""
    return {name: value for name, value in described.items() if not (isinstance(value, str) and len(value) > 300)}
