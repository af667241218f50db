"""Turns leave fingerprints by which an agent that goes round in circles is known."""

from __future__ import annotations

from policy.progress import Circle, find_circle
from tests.integration.runners.conftest import Play, Played


def circle_of(played: Played) -> Circle | None:
    """What the next turn would be stopped for."""
    return find_circle(played.claim().recent)


def test_the_same_call_with_the_same_answer_is_a_circle(play: Play) -> None:
    played = play()
    for _ in range(6):
        played.call("search", text="subtract")
    assert circle_of(played) == Circle(1, 6)


def test_refused_calls_in_turn_are_a_circle(play: Play) -> None:
    played = play()
    for _ in range(3):
        assert played.refused("read_file", path="nowhere.py") == "ENOENT"
        assert played.refused("no_such_tool") == "ENOTOOL"
    assert circle_of(played) == Circle(2, 3)


def test_what_a_rule_refuses_again_and_again_is_known_for_it(play: Play) -> None:
    played = play(writable=("calc/**",))
    for _ in range(6):
        edit = {"path": "tests/new.py", "version": "absent", "new": "x = 1\n"}
        assert played.refused("apply_patch", edits=[edit]) == "EPERM"
    assert circle_of(played) == Circle(1, 6, denied=True)


def test_reading_on_is_none(play: Play) -> None:
    played = play()
    for number in range(8):
        played.call("search", text=f"word {number}")
    assert circle_of(played) is None


def test_an_edit_between_two_looks_is_none(play: Play) -> None:
    played = play(writable=("**",))
    for number in range(4):
        played.call("apply_patch", edits=[{"path": f"new-{number}.py", "version": "absent", "new": "x = 1\n"}])
        played.call("search", text="subtract")
    assert circle_of(played) is None
