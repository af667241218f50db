"""The ledger's server is restarted, stopped, and ends connections: services wait for it and go on."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.chaos.crew import until
from tests.chaos.jobs import FIX, QUICK, SHAPES, SHELL, UNLUCKY
from tests.chaos.yard import Yard

pytestmark = pytest.mark.engine


def _some_are_done(yard: Yard, refs: list[str], amount: int) -> bool:
    return sum(step.state == "done" for ref in refs for step in yard.steps(ref)) >= amount


def test_a_database_that_is_restarted_at_once_is_waited_for(yard: Yard) -> None:
    refs = yard.submit(FIX, SHELL, UNLUCKY)
    for amount in (3, 9):
        until(lambda amount=amount: _some_are_done(yard, refs, amount))  # type: ignore[misc]
        yard.postgres.restart()
    yard.ends_well(refs)


def test_a_database_that_stands_still_for_longer_than_a_lease_is_waited_for(yard: Yard) -> None:
    refs = yard.submit(FIX, SHELL, QUICK)
    until(lambda: _some_are_done(yard, refs, 4))
    yard.postgres.server.pause()
    time.sleep(6)
    yard.postgres.server.resume()
    yard.ends_well(refs)


def test_connections_may_be_ended_at_any_time(yard: Yard) -> None:
    refs = yard.submit(*SHAPES)
    with psycopg.connect(yard.postgres.url, autocommit=True) as connection:
        for _ in range(8):
            time.sleep(0.4)
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'chaos'"
            )
    yard.ends_well(refs)
