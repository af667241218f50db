"""`NAME=AMOUNT`, as people add to a budget: the names and units of the batch file."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

from ledger.errors import BadInput
from ledger.records.budget import Amounts, Budget

_MOST = 10**12


def more_budget(given: Sequence[str], option: str) -> tuple[Amounts, int]:
    """What is added: amounts, and milliseconds of wall-clock time. Raises BadInput for what is no positive amount."""
    added: dict[str, float] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if name not in Budget.model_fields:
            near = difflib.get_close_matches(name, Budget.model_fields, n=1)
            raise BadInput(
                f"there is no budget {name!r}",
                where=option,
                remedy=f"did you mean {near[0]}?" if near else f"use one of {', '.join(Budget.model_fields)}",
            )
        added[name] = added.get(name, 0) + _amount(name, text if equals else "", option)
    stated: dict[str, Any] = dict.fromkeys(Budget.model_fields, 0) | added
    more = Budget.model_construct(**stated)
    return more.amounts(), round(more.wall_seconds * 1_000)


def _amount(name: str, text: str, option: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    whole = Budget.model_fields[name].annotation is int
    if not 0 < amount <= _MOST or (whole and amount != int(amount)):
        kind = "a whole number" if whole else "a number"
        raise BadInput(f"{text!r} is no amount of {name}", where=option, remedy=f"give {kind} above 0: {name}=10")
    return amount
