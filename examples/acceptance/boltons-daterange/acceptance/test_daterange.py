"""daterange() ends for every step; nothing here can hang, since only the first few dates are asked for."""

from datetime import date
from itertools import islice

import pytest
from boltons.timeutils import daterange

FIRST, LAST = date(2024, 3, 1), date(2024, 3, 4)


def first_dates(*args, **kwargs):
    return list(islice(daterange(*args, **kwargs), 10))


def test_a_step_of_zero_is_refused():
    with pytest.raises(ValueError):
        first_dates(FIRST, LAST, step=0)


def test_a_step_that_cancels_itself_is_refused():
    with pytest.raises(ValueError):
        first_dates(date(2024, 1, 1), date(2024, 6, 1), step=(0, 1, -31))


def test_a_step_away_from_the_end_gives_no_dates():
    assert first_dates(FIRST, LAST, step=-1) == []
    assert first_dates(LAST, FIRST, step=1) == []


def test_days_forwards_and_backwards():
    assert first_dates(FIRST, LAST) == [date(2024, 3, d) for d in (1, 2, 3)]
    assert first_dates(LAST, FIRST, step=-1, inclusive=True) == [date(2024, 3, d) for d in (4, 3, 2, 1)]


def test_months_without_an_end():
    assert first_dates(FIRST, None, step=(0, 1, 0))[:3] == [date(2024, m, 1) for m in (3, 4, 5)]
