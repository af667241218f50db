"""What people add to a budget."""

from __future__ import annotations

import pytest

from ledger.errors import BadInput
from ledger.records.budget import Amounts
from patchyard.more_budget import more_budget


def test_amounts_have_the_units_of_the_batch_file_and_add_up() -> None:
    given = ["cost_usd=1.25", "steps=5", "steps=2", "sandbox_seconds=1.5", "wall_seconds=60"]
    assert more_budget(given, "--add-budget") == (Amounts(steps=7, cost_microusd=1_250_000, sandbox_ms=1_500), 60_000)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("cost=1", "did you mean cost_usd"),
        ("nonsense=1", "use one of steps"),
        ("steps", "'' is no amount of steps"),
        ("steps=1.5", "a whole number above 0"),
        ("steps=0", "a whole number above 0"),
        ("cost_usd=-1", "a number above 0"),
        ("cost_usd=nan", "a number above 0"),
        ("cost_usd=1e99", "a number above 0"),
        ("wall_seconds=inf", "a number above 0"),
    ],
)
def test_what_is_no_amount_is_refused(given: str, told: str) -> None:
    with pytest.raises(BadInput) as refused:
        more_budget([given], "--add-budget")
    assert told in str(refused.value)
    assert refused.value.where == "--add-budget"
