"""How an effect on the outside world is made at most once, whatever dies on the way.

The intent is in the ledger before anything is sent. Then the world is looked at: as before the effect, it is made; as
after it, only the receipt is written; neither, and it stops for a person (`EffectUncertain`). A write whose outcome did
not come back is never sent again by the same attempt: the world is looked at until the remote must have settled, and
if it still shows nothing, the step goes back and a later attempt looks again before it acts.

The lease is asked for in the same statement that gives the turn to write, directly before the write. A process that is
paused between that answer and its packet, for longer than its lease, is the one case that only the remote can catch: a
push by its lease on the old id, a pull request by the forge's rule of one for a branch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never

from ledger.faults import crash_point
from ledger.records.base import Record, canonical_json, sha256_hex
from runners.effects.errors import EffectRefused, EffectUncertain, NotMyTurn, NotSettled, OutcomeUnknown
from runners.effects.pace import Turns

Outcome = Literal["applied", "found", "recorded"]


class Receipt(Record):
    """What stands in the world: `ref` a branch's full name, `url` for people, `number` of a pull request or comment.

    `adopted` says that it was there without our mark and is taken as ours, since it has exactly our content.
    """

    ref: str | None = None
    commit: str | None = None
    url: str | None = None
    number: int | None = None
    adopted: bool = False

    @classmethod
    def of(cls, told: dict[str, Any]) -> Receipt:
        """The receipt in what the ledger kept, which is more when a person resolved the effect."""
        return cls.model_validate({name: told[name] for name in cls.model_fields if name in told})


@dataclass(frozen=True, slots=True)
class Before:
    """The world is as before the effect."""


@dataclass(frozen=True, slots=True)
class After:
    """The effect is in the world."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Neither:
    """Something else is in the world; `evidence` (plain values) is what a person needs in order to decide."""

    evidence: dict[str, Any]


Seen = Before | After | Neither


class Effect(Protocol):
    """One effect on the outside world."""

    @property
    def kind(self) -> str:
        """`branch`, `pull_request`, `labels` or `comment`."""

    @property
    def key(self) -> str:
        """The idempotency key: the same effect has the same key in every attempt."""

    @property
    def turns(self) -> Turns | None:
        """Whose turns the write needs, or None for a remote that needs no pacing."""

    def described(self) -> dict[str, Any]:
        """The payload in plain values; the same key with another payload is an error. No secrets."""

    def probe(self) -> Seen:
        """Looks at the world and changes nothing. Raises EffectRefused, Temporary."""

    def apply(self) -> Receipt:
        """Makes the effect, once. EffectRefused and Temporary: it is not in place. OutcomeUnknown: nobody knows."""


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent as the ledger has it; `found` says that an earlier attempt wrote it, and may have acted on it."""

    action_id: str
    state: Literal["intended", "done", "refused", "uncertain"]
    told: dict[str, Any] | None
    found: bool


class Book(Protocol):
    """What the ledger must do for an effect. Every call raises LeaseLost when the lease is gone."""

    def known(self, effect: Effect) -> Intent | None:
        """What an earlier attempt left of the effect, or None."""

    def intend(self, effect: Effect) -> Intent:
        """Writes the intent or finds it. ActionConflict for the same key with another payload."""

    def settle(self, intent: Intent, outcome: Literal["done", "refused", "uncertain"], told: dict[str, Any]) -> None:
        """Writes receipt, refusal or evidence; repeated, it does nothing."""

    def turn_in_seconds(self, effect: Effect) -> float:
        """Seconds until this effect's turn at its forge; nothing is used up."""

    def take_turn(self, effect: Effect) -> float:
        """Uses the turn if it is due and returns 0.0, else the seconds until it is; checks the lease in any case."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one attempt waits for a remote.

    `settle_seconds` is the time after which a remote shows what was written to it (lists lag); `turn_seconds` the
    longest wait for a turn, and `again_seconds` when a step with an unknown outcome comes back.
    """

    settle_seconds: float = 15.0
    first_pause_seconds: float = 0.5
    turn_seconds: float = 15.0
    again_seconds: float = 30.0

    def pauses(self) -> Iterator[float]:
        """Doubling pauses that sum up to `settle_seconds`."""
        pause, left = self.first_pause_seconds, self.settle_seconds
        while left > 0:
            yield min(pause, left)
            left -= pause
            pause *= 2


@dataclass(frozen=True, slots=True)
class Done:
    """An effect that is in place, and whether this attempt made it, found it, or read of it in the ledger."""

    receipt: Receipt
    outcome: Outcome


def fingerprint(effect: Effect) -> str:
    """The payload as one SHA-256."""
    return sha256_hex(canonical_json(effect.described()))


def perform(
    effect: Effect, book: Book, *, patience: Patience = Patience(), sleep: Callable[[float], None] = time.sleep
) -> Done:
    """Makes the effect if the world does not have it yet, and writes its receipt.

    Raises EffectRefused (nothing was done), EffectUncertain (a person decides; both are in the ledger by then),
    Temporary (try again after `retry_after_seconds`; NotMyTurn and RateLimited should not count as an attempt),
    LeaseLost and ActionConflict.
    """
    known = book.known(effect)
    if known is None or known.state in ("intended", "refused"):
        # An attempt that has to wait for long goes back before it has written an intent.
        _await_turn(effect, patience, sleep, book.turn_in_seconds)
    intent = book.intend(effect)
    crash_point("publish.after_intent")
    if intent.state == "done":
        return Done(Receipt.of(intent.told or {}), "recorded")
    if intent.state == "uncertain":
        raise EffectUncertain(_name(effect), intent.told or {})
    try:
        done = _made(effect, book, intent, patience, sleep)
    except EffectRefused as refused:
        book.settle(intent, "refused", refused.plain())
        raise
    except EffectUncertain as uncertain:
        book.settle(intent, "uncertain", uncertain.evidence)
        raise
    book.settle(intent, "done", done.receipt.plain())
    return done


def _made(effect: Effect, book: Book, intent: Intent, patience: Patience, sleep: Callable[[float], None]) -> Done:
    """The effect in place, found or made."""
    # A refused effect is known not to be in the world; of an intended one nothing is known.
    in_doubt = intent.found and intent.state == "intended"
    try:
        seen = _look(effect, patience if in_doubt else None, sleep)
    except EffectRefused as blind:
        if in_doubt:
            raise EffectUncertain(_name(effect), {"could_not_look": blind.plain()}) from blind
        raise
    match seen:
        case After(receipt):
            return Done(receipt, "found")
        case Neither(evidence):
            raise EffectUncertain(_name(effect), evidence)
        case Before():
            _await_turn(effect, patience, sleep, book.take_turn)
            return _applied(effect, patience, sleep)
    assert_never(seen)


def _applied(effect: Effect, patience: Patience, sleep: Callable[[float], None]) -> Done:
    """Sends the write once; if its outcome does not come back, the world is asked."""
    try:
        receipt = effect.apply()
    except OutcomeUnknown as unknown:
        match _after_doubt(effect, patience, sleep):
            case After(receipt):
                return Done(receipt, "found")
            case Neither(evidence):
                raise EffectUncertain(_name(effect), {"after": unknown.message, **evidence}) from unknown
            case Before():
                raise NotSettled(
                    f"{_name(effect)}: {unknown.message}, and the remote does not show it",
                    retry_after_seconds=patience.again_seconds,
                ) from unknown
    crash_point("publish.after_effect")
    return Done(receipt, "applied")


def _after_doubt(effect: Effect, patience: Patience, sleep: Callable[[float], None]) -> Seen:
    try:
        return _look(effect, patience, sleep)
    except EffectRefused as blind:
        return Neither({"could_not_look": blind.plain()})


def _look(effect: Effect, patience: Patience | None, sleep: Callable[[float], None]) -> Seen:
    """The state of the world; with `patience`, "before" is believed only after the remote had time to settle."""
    seen = effect.probe()
    for pause in patience.pauses() if patience else ():
        if not isinstance(seen, Before):
            break
        sleep(pause)
        seen = effect.probe()
    return seen


def _await_turn(
    effect: Effect, patience: Patience, sleep: Callable[[float], None], ask: Callable[[Effect], float]
) -> None:
    """Waits until `ask` gives the turn. NotMyTurn when that takes longer than this attempt may wait."""
    left = patience.turn_seconds
    while (wait := ask(effect)) > 0:
        if wait > left:
            raise NotMyTurn(
                f"{effect.turns and effect.turns.forge}: the next turn is in {wait:.0f} s", retry_after_seconds=wait
            )
        sleep(wait)
        left -= wait


def _name(effect: Effect) -> str:
    return f"{effect.kind} {effect.key[:12]}"
