"""Effects need no more of the database than the role of publish workers has, and no other worker may make one."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from ledger.connect import Database
from ledger.errors import BadInput
from ledger.forges import TurnLimits, close_forge, closed_seconds, postpone_step, settle_effect, take_turn
from ledger.records.step import Claim
from runners.effects.book import StepBook
from runners.effects.effect import perform
from runners.effects.pace import LedgerGate
from tests.integration.effects.conftest import PATIENCE
from tests.integration.effects.worlds import World, effect_from


@pytest.fixture
def service(request: pytest.FixtureRequest, database: Database) -> Iterator[Database]:
    """The ledger as a login with the role of one kind of service."""
    kind = request.param
    login = f"effects_{kind}"
    with psycopg.connect(database.url, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [login]).fetchall():
            connection.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE patchyard_{kind}".encode())
    parts = urlsplit(database.url)
    place = f"{login}:x@{parts.hostname}:{parts.port}"
    with Database(urlunsplit(parts._replace(netloc=place))) as opened:
        yield opened


@pytest.mark.parametrize("service", ["publish"], indirect=True)
@pytest.mark.parametrize("world", ["pull_request-github"], indirect=True)
def test_a_publish_worker_needs_no_more_than_its_role(service: Database, claimed: Claim, world: World) -> None:
    effect, book = effect_from(world.spec, LedgerGate(service)), StepBook(service, claimed)
    assert perform(effect, book, patience=PATIENCE).outcome == "applied"
    assert perform(effect, book, patience=PATIENCE).outcome == "recorded"
    close_forge(service, world.spec["host"], seconds=20, why="tests")
    assert closed_seconds(service, world.spec["host"]) > 18
    postpone_step(service, claimed, why="tests", delay_seconds=1)


@pytest.mark.parametrize("service", ["sandbox", "decide", "scheduler"], indirect=True)
def test_nobody_else_takes_turns_or_writes_receipts(service: Database, claimed: Claim) -> None:
    attempts = (
        lambda: take_turn(service, claimed, forge="f", holder="h", limits=TurnLimits(), use_it=True),
        lambda: settle_effect(service, claimed, "0" * 64, "done", {}),
        lambda: close_forge(service, "f", seconds=1, why="tests"),
    )
    for attempt in attempts:
        with pytest.raises(BadInput, match="permission denied"):
            attempt()
