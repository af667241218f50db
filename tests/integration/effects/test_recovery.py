"""Publish workers that are killed, or paused past their lease, and those who take over: every effect once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from ledger.afterwards import audit_job, find_action
from ledger.connect import Database
from ledger.dispatch import sweep_leases
from ledger.errors import LeaseLost
from ledger.forges import effect_action_id
from ledger.reads import find_job
from ledger.records.step import Claim
from runners.effects.book import StepBook
from runners.effects.effect import Effect, Receipt, Seen, perform
from runners.effects.errors import EffectUncertain
from runners.effects.pace import LedgerGate, Turns
from tests.fixtures.clock import move_clock
from tests.integration.effects.conftest import PATIENCE, claim
from tests.integration.effects.publishing import Order, run_worker
from tests.integration.effects.worlds import KEY, World, effect_from

LEASE_SECONDS = 600


@pytest.mark.parametrize("crash", ["publish.after_intent", "publish.after_effect", "complete.before_commit"])
@pytest.mark.parametrize("world", ["branch-http", "pull_request-github", "comment-gitea"], indirect=True)
def test_a_killed_worker_leaves_nothing_that_is_done_twice(
    database: Database, publish_step: Callable[[], int], world: World, crash: str
) -> None:
    order = Order(database.url, publish_step(), world.spec)
    assert run_worker(order, crash=crash).returncode == -9
    before = world.writes()
    assert before == (0 if crash == "publish.after_intent" else 1)
    with move_clock(database, seconds=LEASE_SECONDS + 1):
        sweep_until_expired(database)
        second = run_worker(order)
        assert second.returncode == 0, second.stderr
        assert (world.there(), world.writes()) == (1, 1)
        job = find_job(database, _job_of(database, order.step))
        assert job.state == "completed"
        assert audit_job(database, job.id) == []


@pytest.mark.parametrize("world", ["pull_request-gitlab", "comment-github"], indirect=True)
def test_a_worker_killed_after_its_write_is_not_fooled_by_a_list_that_lags(
    database: Database, publish_step: Callable[[], int], world: World
) -> None:
    world.forge.lag_seconds = 4  # type: ignore[attr-defined]
    order = Order(database.url, publish_step(), world.spec)
    assert run_worker(order, crash="publish.after_effect").returncode == -9
    with move_clock(database, seconds=LEASE_SECONDS + 1):
        sweep_until_expired(database)
        anew = claim(database, order.step)
        patient = type(PATIENCE)(settle_seconds=6, first_pause_seconds=0.2)
        done = perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, anew), patience=patient)
    assert (done.outcome, world.there(), world.writes()) == ("found", 1, 1)


@pytest.mark.parametrize("world", ["pull_request-github", "comment-gitlab", "branch-file"], indirect=True)
def test_who_cannot_look_at_what_a_killed_worker_did_stops(
    database: Database, publish_step: Callable[[], int], world: World
) -> None:
    order = Order(database.url, publish_step(), world.spec)
    assert run_worker(order, crash="publish.after_effect").returncode == -9
    _lock_out(world)
    with move_clock(database, seconds=LEASE_SECONDS + 1):
        sweep_until_expired(database)
        anew = claim(database, order.step)
        with pytest.raises(EffectUncertain) as stopped:
            perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, anew), patience=PATIENCE)
        assert stopped.value.evidence["could_not_look"]["code"] in ("credential_rejected", "not_found")
        assert find_action(database, effect_action_id(anew, KEY)).state == "uncertain"


@dataclass
class PausedWhileLooking:
    """An effect whose worker is stopped in the middle of its look at the world."""

    inner: Effect
    meanwhile: Callable[[], Any]

    kind = property(lambda self: self.inner.kind)
    key = property(lambda self: self.inner.key)

    @property
    def turns(self) -> Turns | None:
        return self.inner.turns

    def described(self) -> dict[str, Any]:
        return self.inner.described()

    def probe(self) -> Seen:
        seen = self.inner.probe()
        self.meanwhile()
        return seen

    def apply(self) -> Receipt:
        return self.inner.apply()


@pytest.mark.parametrize("world", ["branch-file", "branch-http", "comment-github", "pull_request-gitea"], indirect=True)
def test_a_worker_paused_past_its_lease_writes_nothing_when_it_wakes_up(
    database: Database, claimed: Claim, world: World
) -> None:
    effect = effect_from(world.spec, LedgerGate(database))

    with ExitStack() as clock:

        def overtaken() -> None:
            clock.enter_context(move_clock(database, seconds=LEASE_SECONDS + 1))
            sweep_until_expired(database)
            successor = StepBook(database, claim(database, claimed.step_id))
            assert perform(effect, successor, patience=PATIENCE).outcome == "applied"

        with pytest.raises(LeaseLost):
            perform(PausedWhileLooking(effect, overtaken), StepBook(database, claimed), patience=PATIENCE)
    assert (world.there(), world.writes()) == (1, 1)


def sweep_until_expired(database: Database) -> None:
    """Takes the lease that ran out, as soon as the server has noticed that its holder is dead."""
    for _ in range(100):
        if sweep_leases(database).expired:
            return
        time.sleep(0.05)
    raise AssertionError("no lease ran out")


def _job_of(database: Database, step: int) -> str:
    with database.transaction() as connection:
        row = connection.execute("SELECT job_id FROM ledger.steps WHERE id = %s", [step]).fetchone()
    assert row is not None
    return str(row["job_id"])


def _lock_out(world: World) -> None:
    """Nobody is let in any more."""
    if world.spec["kind"] == "branch":
        world.remote.path.rename(world.remote.path.with_suffix(".away"))  # type: ignore[attr-defined]
    else:
        world.forge.token = "another"  # type: ignore[attr-defined]
