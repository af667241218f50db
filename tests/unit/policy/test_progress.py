"""Agents that go round in circles are told from those that learn something."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.steps import MARKS_KEPT, MAX_ATTEMPTS
from policy.progress import LEAST_TURNS, LONGEST_CIRCLE, ROUNDS, Circle, find_circle, fingerprint

TREE, OTHER = "1" * 40, "2" * 40
CALL = {"tool": "run_shell", "arguments": {"command": "make"}}


def seen(text: str, **more: object) -> dict[str, object]:
    """An observation."""
    return {"data": {"output_tail": text, "run_ms": 3, **more}, "error": None}


def test_what_is_kept_is_enough_for_every_circle_and_more_than_the_attempts_of_a_step() -> None:
    assert LONGEST_CIRCLE * ROUNDS <= MARKS_KEPT
    assert MARKS_KEPT >= LEAST_TURNS > MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("turns", "circle"),
    [
        ("aaaaaa", Circle(1, 6)),
        ("xyaaaaaa", Circle(1, 6)),
        ("aaaaa", None),
        ("ababab", Circle(2, 3)),
        ("babab", None),
        ("abcabcabc", Circle(3, 3)),
        ("abcdabcdabcd", Circle(4, 3)),
        ("abcdabcdabc", None),
        ("abababx", None),
        ("aabbaabbaabb", Circle(4, 3)),
        ("abacab", None),
        ("", None),
    ],
)
def test_a_circle_is_found_when_it_has_been_gone_round_often_enough(turns: str, circle: Circle | None) -> None:
    assert find_circle(tuple(turns)) == circle


def test_a_command_whose_answer_changes_is_no_circle() -> None:
    marks = [fingerprint(CALL, seen(f"{number} % done"), TREE) for number in range(MARKS_KEPT)]
    assert find_circle(marks) is None


def test_a_tree_that_changes_is_no_circle() -> None:
    trees = (f"{number:040d}" for number in count())
    assert find_circle([fingerprint(CALL, seen("failed"), next(trees)) for _ in range(MARKS_KEPT)]) is None


def test_what_passes_is_no_difference() -> None:
    first = fingerprint(CALL, seen("1 failed in 0.12s, <Thing at 0x7f12ab34cd>", run_ms=120), TREE)
    assert first == fingerprint(CALL, seen("1 failed in 0.31s, <Thing at 0x7f99ab34cd>", run_ms=310), TREE)


@pytest.mark.parametrize(
    "other",
    [
        fingerprint({**CALL, "arguments": {"command": "make all"}}, seen("x"), TREE),
        fingerprint(CALL, seen("y"), TREE),
        fingerprint(CALL, seen("x"), OTHER),
        fingerprint(CALL, {"data": None, "error": {"code": "EPERM"}}, TREE),
        fingerprint(CALL, seen("x", exit_code=1), TREE),
        fingerprint(CALL, seen("waited 3s"), TREE),
    ],
)
def test_call_observation_and_tree_all_count(other: str) -> None:
    assert other != fingerprint(CALL, seen("x"), TREE)


def test_a_circle_of_refusals_is_told_from_others() -> None:
    refused = [fingerprint(CALL, {"error": {"code": "EPERM"}}, TREE, denied=True)] * 6
    assert find_circle(refused) == Circle(1, 6, denied=True)
    assert "refused by a rule" in Circle(1, 6, denied=True).told()
    mixed = [refused[0], fingerprint(CALL, seen("x"), TREE)] * 3
    assert find_circle(mixed) == Circle(2, 3)


def test_whole_seconds_are_an_answer() -> None:
    assert fingerprint(CALL, seen("waited 3s"), TREE) != fingerprint(CALL, seen("waited 4s"), TREE)


@given(st.lists(st.sampled_from("abc"), max_size=MARKS_KEPT))
def test_whatever_is_found_was_gone_round(marks: list[str]) -> None:
    if (circle := find_circle(marks)) is None:
        return
    last = marks[-circle.turns * circle.rounds :]
    assert last == last[: circle.turns] * circle.rounds
    assert len(last) >= LEAST_TURNS
    assert str(circle.rounds) in circle.told()
