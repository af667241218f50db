"""One yard for all tests here: its processes go on from test to test, and each test brings its faults and its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.yard import Yard, open_yard

EVERYTHING = os.environ.get("CHAOS_MATRIX") == "all"
"""`make chaos` sets this: every crash point at its first, second and last passing by every kind of step."""


@pytest.fixture(scope="package")
def _yard(engine_host: str, sandbox_image: str) -> Iterator[Yard]:
    with open_yard(engine_host, sandbox_image) as opened:
        opened.one_of_each()
        opened.learn()
        yield opened
        assert opened.crew.findings() == []


@pytest.fixture
def yard(_yard: Yard) -> Yard:
    """The yard with one of each service, all of them ready."""
    _yard.heal()
    _yard.crew.ready()
    return _yard
