"""Every effect against every fault of its remote: never twice, never believed to be there when it is not."""

from __future__ import annotations

import pytest

from ledger.afterwards import find_action
from ledger.connect import Database
from ledger.errors import Permanent, Temporary
from ledger.forges import close_forge, closed_seconds, effect_action_id
from ledger.records.step import Claim
from runners.effects.book import StepBook
from runners.effects.effect import Done, Patience, perform
from runners.effects.errors import (
    CredentialRejected,
    EffectRefused,
    EffectUncertain,
    NotAForge,
    NotMyTurn,
    NotPermitted,
    NotSettled,
    RateLimited,
    RejectedByRemote,
    RemoteGone,
    RemoteMissing,
    RemoteMoved,
    RemoteUnreachable,
)
from runners.effects.pace import LedgerGate
from tests.fixtures.clock import move_clock
from tests.integration.effects.conftest import PATIENCE
from tests.integration.effects.worlds import (
    FAULTY_WORLDS,
    FORGE_WORLDS,
    KEY,
    BranchWorld,
    ForgeWorld,
    HttpBranchWorld,
    World,
    effect_from,
)

PULLS = [name for name in FORGE_WORLDS if name.startswith("pull_request")]
DONE_ANYWAY = ("late", "drop_after", "500_after", "html_after", "cut_after", "odd_after")
NOT_DONE: dict[str, type[Exception]] = {
    "drop_before": NotSettled,
    "500_before": NotSettled,
    "502_html": NotSettled,
    "401": CredentialRejected,
    "403": NotPermitted,
    "404": RemoteMissing,
    "410": RemoteGone,
    "422": RejectedByRemote,
    "moved": RemoteMoved,
    "secondary": RateLimited,
    "primary": RateLimited,
    "429": RateLimited,
}


def _perform(database: Database, claimed: Claim, world: World, patience: Patience = PATIENCE) -> Done:
    return perform(effect_from(world.spec, LedgerGate(database)), StepBook(database, claimed), patience=patience)


def _state(database: Database, claimed: Claim) -> str:
    return find_action(database, effect_action_id(claimed, KEY)).state


@pytest.mark.parametrize("fault", DONE_ANYWAY)
@pytest.mark.parametrize("world", FAULTY_WORLDS, indirect=True)
def test_a_write_that_was_done_and_not_answered_is_found(
    database: Database, claimed: Claim, world: World, fault: str
) -> None:
    world.faults.append(fault)
    if fault == "late":
        world.hurry()
    done = _perform(database, claimed, world)
    # An answer of another shape says nothing of labels, and so can't be odd.
    assert done.outcome == ("applied" if fault == "odd_after" and world.spec["kind"] == "labels" else "found")
    assert (world.there(), world.writes(), _state(database, claimed)) == (1, 1, "done")


@pytest.mark.parametrize("fault", ["huge_after", "deep_after", "drip_after"])
@pytest.mark.parametrize("world", ["pull_request-github"], indirect=True)
def test_an_answer_beyond_all_bounds_is_no_answer(database: Database, claimed: Claim, world: World, fault: str) -> None:
    world.faults.append(fault)
    world.hurry()
    assert _perform(database, claimed, world).outcome == "found"
    assert (world.there(), world.writes()) == (1, 1)


@pytest.mark.parametrize("fault", NOT_DONE)
@pytest.mark.parametrize("world", [*PULLS, "comment-github", "labels-github"], indirect=True)
def test_a_write_that_was_not_done_is_done_by_a_later_attempt(
    database: Database, claimed: Claim, world: World, fault: str
) -> None:
    world.faults.append(fault)
    with pytest.raises(NOT_DONE[fault]) as failed:
        _perform(database, claimed, world)
    assert (world.there(), world.writes()) == (0, 1)
    assert world.spec["token"] not in str(failed.value)
    if issubclass(NOT_DONE[fault], Permanent):
        assert _state(database, claimed) == "refused"
    else:
        assert isinstance(failed.value, Temporary)
        assert _state(database, claimed) == "intended"
    if isinstance(failed.value, RateLimited):
        assert closed_seconds(database, world.spec["host"]) == pytest.approx(failed.value.retry_after_seconds, abs=2)
        return
    assert _perform(database, claimed, world).outcome == "applied"
    assert (world.there(), world.writes(), _state(database, claimed)) == (1, 2, "done")


@pytest.mark.parametrize(("fault", "seconds"), [("secondary", 7), ("primary", 30), ("429", 60)])
@pytest.mark.parametrize("world", PULLS, indirect=True)
def test_a_forge_that_wants_to_be_left_alone_is_left_alone(
    database: Database, claimed: Claim, world: World, fault: str, seconds: float
) -> None:
    world.faults.append(fault)
    with pytest.raises(RateLimited) as limited:
        _perform(database, claimed, world)
    assert limited.value.retry_after_seconds == pytest.approx(seconds, abs=1.5)
    assert isinstance(world, ForgeWorld)
    requests = len(world.forge.seen)
    with pytest.raises(NotMyTurn) as waiting:
        _perform(database, claimed, world)
    assert waiting.value.retry_after_seconds == pytest.approx(seconds, abs=2)
    assert len(world.forge.seen) == requests
    with move_clock(database, seconds=seconds + 2):
        assert _perform(database, claimed, world).outcome == "applied"
    assert world.there() == 1


@pytest.mark.parametrize("world", PULLS, indirect=True)
def test_an_answer_that_uses_up_the_limit_closes_the_forge(database: Database, claimed: Claim, world: World) -> None:
    world.faults.append("last")
    assert _perform(database, claimed, world).outcome == "applied"
    assert closed_seconds(database, world.spec["host"]) == pytest.approx(30, abs=2)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        *(("drop_before", RemoteUnreachable), ("500_before", RemoteUnreachable), ("502_html", RemoteUnreachable)),
        *(("html", NotAForge), ("odd", NotAForge), ("401", CredentialRejected), ("403", NotPermitted)),
    ],
)
@pytest.mark.parametrize("world", [*PULLS, "comment-gitlab"], indirect=True)
def test_who_cannot_look_does_not_write(
    database: Database, claimed: Claim, world: World, fault: str, error: type[Exception]
) -> None:
    world.read_faults.append("odd_after" if fault == "odd" else fault)
    with pytest.raises(error):
        _perform(database, claimed, world)
    assert (world.there(), world.writes()) == (0, 0)
    assert _state(database, claimed) == ("refused" if issubclass(error, EffectRefused) else "intended")


@pytest.mark.parametrize("world", [*PULLS, "comment-github"], indirect=True)
def test_who_cannot_look_after_a_doubtful_write_stops(database: Database, claimed: Claim, world: World) -> None:
    world.faults.append("drop_after")
    world.read_faults += ["", "401"]
    with pytest.raises(EffectUncertain) as stopped:
        _perform(database, claimed, world)
    assert stopped.value.evidence["could_not_look"]["code"] == "credential_rejected"
    assert (world.there(), world.writes(), _state(database, claimed)) == (1, 1, "uncertain")


@pytest.mark.parametrize("fault", ["drop_after", "late"])
@pytest.mark.parametrize("world", [name for name in FORGE_WORLDS if not name.startswith("labels")], indirect=True)
def test_a_list_that_lags_hides_no_write(database: Database, claimed: Claim, world: World, fault: str) -> None:
    assert isinstance(world, ForgeWorld)
    world.forge.lag_seconds = 0.8
    world.faults.append(fault)
    if fault == "late":
        world.hurry()
    done = _perform(database, claimed, world, Patience(settle_seconds=3, first_pause_seconds=0.1))
    assert (done.outcome, world.there(), world.writes()) == ("found", 1, 1)


@pytest.mark.parametrize("world", [name for name in FORGE_WORLDS if not name.startswith("labels")], indirect=True)
def test_a_list_that_lags_beyond_all_patience_ends_the_attempt_and_not_in_a_second_write(
    database: Database, claimed: Claim, world: World
) -> None:
    assert isinstance(world, ForgeWorld)
    world.forge.lag_seconds = 1.5
    world.faults.append("drop_after")
    with pytest.raises(NotSettled):
        _perform(database, claimed, world)
    done = _perform(database, claimed, world, Patience(settle_seconds=3, first_pause_seconds=0.2))
    assert (done.outcome, world.there(), world.writes()) == ("found", 1, 1)


@pytest.mark.parametrize("world", PULLS, indirect=True)
def test_a_duplicate_is_data(database: Database, claimed: Claim, world: World) -> None:
    """A proxy sends the request twice; the answer that reaches us is the refusal of the second."""
    world.faults.append("twice")
    done = _perform(database, claimed, world)
    assert (done.outcome, world.there(), world.writes()) == ("found", 1, 1)


@pytest.mark.parametrize("world", ["pull_request-github"], indirect=True)
def test_nothing_is_sent_to_a_closed_forge(database: Database, claimed: Claim, world: World) -> None:
    close_forge(database, world.spec["host"], seconds=2, why="tests")
    with pytest.raises(RateLimited):
        effect_from(world.spec, LedgerGate(database)).probe()
    assert isinstance(world, ForgeWorld)
    assert not world.forge.seen


BRANCH_DONE_ANYWAY = ("late", "drop_after", "500_after")
BRANCH_NOT_DONE: dict[str, type[Exception]] = {
    "drop_before": NotSettled,
    "500_before": NotSettled,
    "401": CredentialRejected,
    "403": NotPermitted,
    "404": RemoteMissing,
    "429": RateLimited,
    "html": NotAForge,
}


@pytest.mark.parametrize("fault", BRANCH_DONE_ANYWAY)
@pytest.mark.parametrize("world", ["branch-http"], indirect=True)
def test_a_push_that_was_done_and_not_answered_is_found(
    database: Database, claimed: Claim, world: World, fault: str
) -> None:
    world.faults.append(fault)
    if fault == "late":
        world.hurry()
    assert _perform(database, claimed, world).outcome == "found"
    assert (world.there(), _state(database, claimed)) == (1, "done")


@pytest.mark.parametrize("fault", BRANCH_NOT_DONE)
@pytest.mark.parametrize("world", ["branch-http"], indirect=True)
def test_a_push_that_was_not_done_is_done_by_a_later_attempt(
    database: Database, claimed: Claim, world: World, fault: str
) -> None:
    world.faults.append(fault)
    with pytest.raises(BRANCH_NOT_DONE[fault]) as failed:
        _perform(database, claimed, world)
    assert world.there() == 0
    assert world.spec["token"] not in str(failed.value)
    assert _perform(database, claimed, world).outcome == "applied"
    assert (world.there(), _state(database, claimed)) == (1, "done")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        *(("drop_before", RemoteUnreachable), ("500_before", RemoteUnreachable), ("html", NotAForge)),
        *(("401", CredentialRejected), ("403", NotPermitted), ("404", RemoteMissing)),
    ],
)
@pytest.mark.parametrize("world", ["branch-http"], indirect=True)
def test_who_cannot_list_refs_does_not_push(
    database: Database, claimed: Claim, world: World, fault: str, error: type[Exception]
) -> None:
    world.read_faults.append(fault)
    with pytest.raises(error):
        _perform(database, claimed, world)
    assert (world.there(), world.writes()) == (0, 0)


@pytest.mark.parametrize(
    ("hook", "code"),
    [
        ("pre-receive", "hook_declined"),
        ("update", "hook_declined"),
        ("protected", "protected"),
    ],
)
@pytest.mark.parametrize("world", ["branch-file", "branch-http", "branch-ssh"], indirect=True)
def test_a_remote_that_refuses_says_why(database: Database, claimed: Claim, world: World, hook: str, code: str) -> None:
    assert isinstance(world, BranchWorld)
    words = "this branch is protected" if hook == "protected" else "commits need a ticket"
    world.remote.hook("update" if hook == "protected" else hook, f"printf '{words}\\033[31m\\n'; exit 1")
    with pytest.raises(RejectedByRemote) as refused:
        _perform(database, claimed, world)
    assert refused.value.code == code
    assert words in refused.value.said
    assert "\033" not in refused.value.said
    action = find_action(database, effect_action_id(claimed, KEY))
    assert (action.state, action.receipt) == ("refused", refused.value.plain())
    assert world.there() == 0
    (world.remote.path / "hooks" / ("update" if hook == "protected" else hook)).unlink()
    assert _perform(database, claimed, world).outcome == "applied"


@pytest.mark.parametrize("world", ["branch-file", "branch-http", "branch-ssh"], indirect=True)
def test_a_branch_that_somebody_moved_is_never_overwritten(database: Database, claimed: Claim, world: World) -> None:
    assert isinstance(world, BranchWorld)
    effect = effect_from(world.spec, LedgerGate(database))
    world.spoil()
    # Even when the look at the world is skipped: the push has a lease on the old id.
    with pytest.raises(Exception, match="there already"):
        effect.apply()
    with pytest.raises(EffectUncertain) as stopped:
        _perform(database, claimed, world)
    assert stopped.value.evidence["found"] == world.base
    assert world.remote.at("refs/heads/patchyard/fixes/links-55555555") == world.base


@pytest.mark.parametrize("world", ["branch-http"], indirect=True)
def test_a_wrong_password_is_refused_and_not_told(database: Database, claimed: Claim, world: World) -> None:
    assert isinstance(world, HttpBranchWorld)
    world.served.login = ("pusher", "another")
    with pytest.raises(CredentialRejected) as refused:
        _perform(database, claimed, world)
    assert "s3cret" not in str(refused.value)
    assert world.there() == 0
