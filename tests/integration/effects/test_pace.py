"""The turns at a forge: kept by all workers together, through the ledger."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from ledger.afterwards import find_action
from ledger.connect import Database
from ledger.errors import BadInput, LeaseLost
from ledger.forges import (
    TurnLimits,
    check_lease,
    close_forge,
    closed_seconds,
    effect_action_id,
    postpone_step,
    take_turn,
)
from ledger.records.step import Claim
from runners.effects.book import StepBook
from runners.effects.effect import Patience, perform
from runners.effects.errors import NotMyTurn
from runners.effects.pace import GITHUB, LedgerGate, Turns
from runners.effects.pull_request import PullRequest
from tests.fixtures.clock import move_clock
from tests.fixtures.forge import played_forge
from tests.integration.effects.conftest import PATIENCE, claim
from tests.integration.effects.worlds import KEY, ForgeWorld, effect_from


class Passing:
    """Compares a wait with what it was when this was made: it may have shrunk by the time that passed since."""

    def __init__(self) -> None:
        self._made = time.monotonic()

    def __call__(self, wait: float, expected: float) -> bool:
        """Whether a wait of `expected` seconds from the start is one of `wait` seconds now."""
        passed = time.monotonic() - self._made
        return max(0.0, expected - passed) - 0.05 <= wait <= expected + 0.05


_FORGES = (f"forge-{number}.example" for number in itertools.count())


@pytest.fixture
def forge() -> str:
    """The name of a forge that nobody has written to."""
    return next(_FORGES)


@pytest.fixture
def turn(database: Database, claimed: Claim, forge: str) -> Callable[..., float]:
    """Asks for a turn at the forge."""

    def ask(holder: str, limits: TurnLimits, *, use_it: bool = True) -> float:
        return take_turn(database, claimed, forge=forge, holder=holder, limits=limits, use_it=use_it)

    return ask


def test_workers_write_to_one_forge_at_least_a_second_apart(
    database: Database, publish_step: Callable[[], int]
) -> None:
    with played_forge("github") as played:
        world = ForgeWorld("pull_request", played)
        claims = [claim(database, publish_step()) for _ in range(4)]

        def publish(number: int) -> None:
            made = effect_from(world.spec, LedgerGate(database))
            assert isinstance(made, PullRequest)
            effect = replace(made, key=f"{number:064d}", head=f"branch-{number}")
            effect.forge.turns = Turns(played.host, GITHUB)  # type: ignore[misc]
            perform(effect, StepBook(database, claims[number]), patience=PATIENCE)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times = [seen.at for seen in played.writes()]
    assert len(times) == 4
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (TurnLimits(gap_seconds=2), [0, 2, 4, 6, 8]),
        (TurnLimits(gap_seconds=1, per_minute=2), [0, 1, 60, 61, 120]),
        (TurnLimits(gap_seconds=1, per_minute=3, per_hour=4), [0, 1, 2, 60, 3600]),
    ],
)
def test_who_waits_comes_one_after_the_other(
    turn: Callable[..., float], limits: TurnLimits, expected: list[float]
) -> None:
    about = Passing()
    waits = [turn(f"holder-{number}", limits) for number in range(5)]
    assert all(map(about, waits, expected))
    again = [turn(f"holder-{number}", limits) for number in range(1, 5)]
    assert all(map(about, again, expected[1:]))


def test_limits_hold_for_turns_used_whatever_was_planned(database: Database, turn: Callable[..., float]) -> None:
    limits = TurnLimits(gap_seconds=1, per_minute=3)
    about = Passing()
    for number in range(6):
        turn(f"holder-{number}", limits, use_it=False)
    with move_clock(database, seconds=300):
        # All are overdue; they still come at most three a minute, a second apart.
        used = [turn(f"holder-{number}", limits) for number in range(6)]
        assert used[0] == 0
        assert all(0 < wait <= 1 for wait in used[1:])
    with move_clock(database, seconds=302):
        assert turn("holder-1", limits) == 0
    with move_clock(database, seconds=304):
        assert turn("holder-2", limits) == 0
        assert about(turn("holder-3", limits), 56)


def test_a_closed_forge_keeps_the_order_of_those_who_wait(
    database: Database, turn: Callable[..., float], forge: str
) -> None:
    limits = TurnLimits(gap_seconds=2)
    about = Passing()
    for number in range(3):
        turn(f"holder-{number}", limits)
    close_forge(database, forge, seconds=100, why="retry-after")
    close_forge(database, forge, seconds=5, why="an earlier end changes nothing")
    assert about(closed_seconds(database, forge), 100)
    waits = [turn(f"holder-{number}", limits) for number in (1, 2, 3)]
    assert all(map(about, waits, [102, 104, 106]))


def test_a_turn_is_given_only_to_who_holds_the_lease(
    database: Database, claimed: Claim, turn: Callable[..., float]
) -> None:
    with move_clock(database, seconds=601):
        with pytest.raises(LeaseLost):
            turn("late", TurnLimits())
        with pytest.raises(LeaseLost):
            check_lease(database, claimed)


def test_a_long_wait_leaves_no_intent(database: Database, claimed: Claim) -> None:
    with played_forge("gitea") as played:
        world = ForgeWorld("pull_request", played)
        close_forge(database, played.host, seconds=50, why="tests")
        with pytest.raises(NotMyTurn) as waiting:
            perform(
                effect_from(world.spec, LedgerGate(database)),
                StepBook(database, claimed),
                patience=Patience(turn_seconds=5),
            )
    assert waiting.value.retry_after_seconds == pytest.approx(50, abs=2)
    with pytest.raises(BadInput, match="no action"):
        find_action(database, effect_action_id(claimed, KEY))
    assert played.seen == []


def test_waiting_for_a_turn_is_no_attempt(database: Database, publish_step: Callable[[], int]) -> None:
    step = publish_step()
    attempts = []
    for _ in range(8):
        claimed = claim(database, step)
        attempts.append(claimed.attempt)
        postpone_step(database, claimed, why="others first", delay_seconds=0)
        with pytest.raises(LeaseLost):
            postpone_step(database, claimed, why="others first", delay_seconds=0)
    assert attempts == [1] + [2] * 7


def test_a_postponed_step_waits_its_time(database: Database, publish_step: Callable[[], int]) -> None:
    step = publish_step()
    postpone_step(database, claim(database, step), why="others first", delay_seconds=30)
    with pytest.raises(AssertionError):
        claim(database, step)
    with move_clock(database, seconds=31):
        assert claim(database, step).attempt == 2
