"""A parsed timestamp has the microseconds that were written."""

from datetime import datetime, timedelta

import parse

NOON = datetime(2024, 5, 17, 12, 0, 0)


def parsed(text):
    return parse.parse("{:ti}", text)[0]


def test_microseconds_survive():
    lost = [
        n
        for n in range(1, 1_000_000, 997)
        if parsed(f"2024-05-17T12:00:00.{n:06d}") != NOON + timedelta(microseconds=n)
    ]
    assert lost == []


def test_milliseconds_survive():
    lost = [n for n in range(1, 1_000) if parsed(f"2024-05-17T12:00:00.{n:03d}") != NOON + timedelta(milliseconds=n)]
    assert lost == []


def test_more_than_six_digits_are_cut():
    assert parsed("2024-05-17T12:00:00.9999999") == NOON + timedelta(microseconds=999_999)


def test_no_fraction():
    assert parsed("2024-05-17T12:00:00") == NOON
