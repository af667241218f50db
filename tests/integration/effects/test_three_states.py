"""Every effect, on a world that is as before it, as after it, and neither; and what the ledger says then."""

from __future__ import annotations

import pytest

from ledger.afterwards import find_action, resolve_action
from ledger.connect import ActionConflict, Database
from ledger.dispatch import admit_jobs
from ledger.forges import effect_action_id
from ledger.records.step import Claim, Completion
from ledger.steps import complete_step
from runners.effects.book import StepBook
from runners.effects.effect import perform
from runners.effects.errors import EffectUncertain
from runners.effects.pace import LedgerGate
from tests.fixtures.forge_routes import PlayedForge
from tests.integration.effects.conftest import PATIENCE, claim
from tests.integration.effects.worlds import (
    BRANCH,
    FORGE_WORLDS,
    KEY,
    WORLDS,
    ForgeWorld,
    OpenGate,
    World,
    effect_from,
)

SPOILT = [name for name in WORLDS if not name.startswith("labels")]


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_before_it_is_made_once_and_its_receipt_is_kept(database: Database, claimed: Claim, world: World) -> None:
    effect, book = effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed)
    done = perform(effect, book, patience=PATIENCE)
    assert (done.outcome, world.there(), world.writes()) == ("applied", 1, 1)
    action = find_action(database, effect_action_id(claimed, KEY))
    assert (action.state, action.receipt) == ("done", done.receipt.plain())
    again = perform(effect, book, patience=PATIENCE)
    assert (again.outcome, again.receipt, world.writes()) == ("recorded", done.receipt, 1)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_after_it_only_the_receipt_is_written(database: Database, claimed: Claim, world: World) -> None:
    effect = effect_from(world.spec, LedgerGate(database))
    made = effect.apply()
    done = perform(effect, StepBook(database, claimed), patience=PATIENCE)
    assert (done.outcome, done.receipt) == ("found", made)
    assert (world.there(), world.writes()) == (1, 1)


@pytest.mark.parametrize("world", SPOILT, indirect=True)
def test_neither_stops_for_a_person_and_touches_nothing(database: Database, claimed: Claim, world: World) -> None:
    world.spoil()
    before = world.writes()
    effect, book = effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed)
    with pytest.raises(EffectUncertain) as stopped:
        perform(effect, book, patience=PATIENCE)
    assert "why" in stopped.value.evidence
    assert world.writes() == before
    action = find_action(database, effect_action_id(claimed, KEY))
    assert (action.state, action.receipt) == ("uncertain", stopped.value.evidence)
    with pytest.raises(EffectUncertain) as recorded:
        perform(effect, book, patience=PATIENCE)
    assert recorded.value.evidence == stopped.value.evidence


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("world", ["pull_request-github"], indirect=True)
def test_a_person_resolves_what_was_uncertain(database: Database, claimed: Claim, world: World, done: bool) -> None:
    world.spoil()
    effect, book = effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed)
    with pytest.raises(EffectUncertain):
        perform(effect, book, patience=PATIENCE)
    complete_step(database, claimed, Completion(result={}, end="effect_uncertain"))
    resolve_action(database, effect_action_id(claimed, KEY), done=done, by="ann")
    anew = claim(database, admit_jobs(database, capacity=100_000)[0].step_id)
    if done:
        assert perform(effect, StepBook(database, anew), patience=PATIENCE).receipt.number == 7
        return
    _forge(world).requests.clear()
    assert perform(effect, StepBook(database, anew), patience=PATIENCE).outcome == "applied"
    assert world.there() == 1


@pytest.mark.parametrize("world", FORGE_WORLDS[:6], indirect=True)
def test_the_same_key_with_another_payload_is_an_error(database: Database, claimed: Claim, world: World) -> None:
    book = StepBook(database, claimed)
    perform(effect_from(world.spec, LedgerGate(database)), book, patience=PATIENCE)
    other = effect_from({**world.spec, "repository": "acme/other"}, LedgerGate(database))
    with pytest.raises(ActionConflict):
        perform(other, book, patience=PATIENCE)
    assert world.writes() == 1


@pytest.mark.parametrize("world", ["pull_request-github", "pull_request-gitlab", "pull_request-gitea"], indirect=True)
class TestWhatAPullRequestIsTakenFor:
    def test_one_that_was_merged_is_in_place(self, database: Database, claimed: Claim, world: World) -> None:
        effect = effect_from(world.spec, LedgerGate(database))
        effect.apply()
        _forge(world).requests[0].state = "merged"
        assert perform(effect, StepBook(database, claimed), patience=PATIENCE).outcome == "found"

    def test_one_without_the_mark_is_adopted_at_our_commit(
        self, database: Database, claimed: Claim, world: World
    ) -> None:
        theirs = _forge(world).add_request(head=BRANCH, base="main", commit="c" * 40)
        done = perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed), patience=PATIENCE)
        assert (done.receipt.number, done.receipt.adopted, world.writes()) == (theirs.number, True, 0)

    def test_one_without_the_mark_at_another_commit_is_not_ours(
        self, database: Database, claimed: Claim, world: World
    ) -> None:
        _forge(world).add_request(head=BRANCH, base="main", commit="d" * 40)
        with pytest.raises(EffectUncertain):
            perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed), patience=PATIENCE)
        assert world.writes() == 0

    def test_one_of_another_branch_is_none_of_ours(self, database: Database, claimed: Claim, world: World) -> None:
        _forge(world).add_request(head="other", base="main", commit="c" * 40)
        _forge(world).add_request(head=BRANCH, base="stable", commit="c" * 40, state="closed")
        done = perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed), patience=PATIENCE)
        assert done.outcome == "applied"

    def test_an_open_one_beside_a_closed_one_is_ours_only_by_its_mark(
        self, database: Database, claimed: Claim, world: World
    ) -> None:
        _forge(world).add_request(head=BRANCH, base="main", commit="c" * 40, state="closed")
        effect = effect_from(world.spec, OpenGate())
        ours = effect.apply()
        assert perform(effect, StepBook(database, claimed), patience=PATIENCE).receipt.number == ours.number

    def test_a_mark_in_the_given_text_is_taken_out(self, database: Database, claimed: Claim, world: World) -> None:
        perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed), patience=PATIENCE)
        assert _forge(world).requests[0].text.count("patchyard:") == 1
        assert _forge(world).requests[0].draft


def _forge(world: World) -> PlayedForge:
    assert isinstance(world, ForgeWorld)
    return world.forge
