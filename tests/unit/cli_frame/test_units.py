"""Amounts, names and reasons as people read them: those of the batch file, with what was spent of what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from ledger.records.budget import RESOURCES, Amounts, Budget
from ledger.records.job import Reason
from patchyard.cli.units import reason_words, stated_name, stated_reason

SPENT = Amounts(steps=40, input_tokens=398_100, cost_microusd=1_987_000, sandbox_ms=450_250)
GRANTED = Budget(steps=40).amounts()
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_resource_has_the_name_of_the_batch_file() -> None:
    assert {stated_name(resource) for resource in RESOURCES} <= Budget.model_fields.keys()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (None, ""),
        ("verified", "verified"),
        ("budget:steps", "budget:steps 40/40"),
        ("budget:input_tokens", "budget:input_tokens 398.1k/400.0k"),
        ("budget:cost_microusd", "budget:cost_usd $1.99/$2.00"),
        ("budget:sandbox_ms", "budget:sandbox_seconds 450.2/600"),
        ("budget:deadline", "budget:deadline 903/900 s"),
    ],
)
def test_a_budget_that_ran_out_says_what_was_spent_of_what(reason: str | None, words: str) -> None:
    times = (START, START + timedelta(seconds=903), START + timedelta(seconds=900))
    assert reason_words(reason, SPENT, GRANTED, times) == words


def test_without_times_a_deadline_is_named_alone() -> None:
    assert reason_words("budget:deadline", SPENT, GRANTED) == "budget:deadline"


def test_no_two_reasons_look_the_same() -> None:
    reasons = get_args(Reason)
    assert len({stated_reason(reason) for reason in reasons}) == len(reasons)
