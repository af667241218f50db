"""What a changed job is told by: the field's path and both values, whatever their length."""

from __future__ import annotations

import pytest

from ledger.differences import change_words

LONG = "word " * 100


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({"budget": {"steps": 40, "agents": 4}}, {"budget": {"steps": 20, "agents": 4}}, "budget.steps 40 → 20"),
        ({"tests": {"command": ["a", "b"]}}, {"tests": {"command": ["a", "c"]}}, 'tests.command[1] "b" → "c"'),
        ({"ids": ["a"]}, {"ids": ["a", "b"]}, 'ids ["a"] → ["a", "b"]'),
        ({"network": None}, {"network": {"allow": []}}, 'network null → {"allow": []}'),
        ({}, {"network": {"verify": True}}, 'network nothing → {"verify": true}'),
        ({"red": True, "x": 1}, {"red": False, "x": 1.5}, "red true → false, x 1 → 1.5"),
        (dict.fromkeys("abcdef", 0), dict.fromkeys("abcdef", 1), "a 0 → 1, b 0 → 1, c 0 → 1, d 0 → 1, e 0 → 1, 1 more"),
    ],
)  # fmt: skip
def test_a_difference_is_a_path_and_both_values(old: dict[str, object], new: dict[str, object], words: str) -> None:
    assert change_words(old, new) == words


def test_of_long_texts_the_part_is_shown_where_they_part() -> None:
    shown = change_words({"issue": LONG + "subtract" + LONG}, {"issue": LONG + "divide" + LONG})
    assert "…word word word word subtract" in shown
    assert "…word word word word divide" in shown
    assert len(shown) < 160


def test_what_was_cut_off_at_the_end_is_shown_too() -> None:
    shown = change_words({"issue": LONG}, {"issue": LONG + "more"})
    assert shown.endswith('more"')
