"""A whole publication on a real git remote and a played forge: what is public at its end, however often it died."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ledger.connect import Database
from ledger.records.publish import Publish
from ledger.records.source import SourceRef
from ledger.records.step import Claim
from runners.effects.book import StepBook
from runners.effects.effect import Receipt
from runners.effects.errors import CredentialMissing, RejectedByRemote
from runners.effects.target import complete_publish
from runners.workspace.store import Store
from tests.fixtures.clock import move_clock
from tests.fixtures.forge import played_forge
from tests.fixtures.forge_routes import PlayedForge
from tests.fixtures.git_remote import BareRemote, HttpRemotes, http_remotes, run_git
from tests.integration.effects.publishing import Order, publication_of, publisher_of, run_worker
from tests.integration.effects.test_recovery import LEASE_SECONDS, sweep_until_expired
from tests.integration.effects.worlds import base_and_fix

TOKEN = "s3cret-of-the-tests"


@dataclass
class Place:
    """A git remote, a forge, and the mirror with the fix."""

    served: HttpRemotes
    remote: BareRemote
    forge: PlayedForge
    store: Store
    base: str
    tree: str

    def order(self, database: Database, step: int, **publish: Any) -> Order:
        """The order to publish the fix; `publish` as in a batch file."""
        told = {"to": "pull_request", "forge": self.forge.kind, "api": self.forge.api, **publish}
        stated = Publish.model_validate({"remote": self.served.url("acme/linkcheck.git"), **told})
        source = SourceRef(kind="git", location="/nowhere/linkcheck.git")
        complete = complete_publish(stated, source, batch="linkcheck-fixes", job="nested-links")
        return Order(
            database=database.url,
            step=step,
            publish=complete.plain(),
            store=str(self.store.path),
            base=self.base,
            tree=self.tree,
            tokens={self.served.host: TOKEN, self.forge.host: self.forge.token},
        )

    def branches(self) -> set[str]:
        """What was pushed."""
        return self.remote.refs() - {"refs/heads/main"}


@pytest.fixture(params=["github"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The place, with a forge of the kind that the parameter names."""
    store = Store.create(tmp_path / "mirror.git")
    base, fix = base_and_fix(store)
    (tmp_path / "served" / "acme").mkdir(parents=True)
    remote = BareRemote.create(tmp_path / "served" / "acme" / "linkcheck.git", head=base, source=store.path)
    with http_remotes(tmp_path / "served", ("pusher", TOKEN)) as served, played_forge(request.param) as forge:
        forge.commit_of = lambda branch: remote.at(f"refs/heads/{branch}") or "0" * 40
        yield Place(served, remote, forge, store, base, store.tree_of_commit(fix))


def _publish(place: Place, database: Database, claimed: Claim, order: Order) -> Receipt:
    return publisher_of(order, database).publish(publication_of(order), place.store, StepBook(database, claimed))


@pytest.mark.parametrize("place", ["github", "gitlab", "gitea"], indirect=True)
def test_a_pull_request_with_all_that_goes_with_it(database: Database, claimed: Claim, place: Place) -> None:
    order = place.order(
        database,
        claimed.step_id,
        draft=True,
        labels=["bot"],
        comment_on=3,
        title="fix: {line}",
        author="Ann Example <ann@example.org>",
    )
    receipt = _publish(place, database, claimed, order)
    (branch,) = place.branches()
    assert branch.startswith("refs/heads/patchyard/linkcheck-fixes/nested-links-")
    (made,) = place.forge.requests
    assert (f"refs/heads/{made.head}", made.base, made.labels, made.draft) == (branch, "main", ["bot"], True)
    assert made.title.endswith("fix: Links in sub-folders are resolved from the root")
    assert "They should start at the document." in made.text
    assert (receipt.ref, receipt.number, receipt.commit) == (branch, made.number, place.remote.at(branch))
    (note,) = place.forge.notes
    assert receipt.url is not None
    assert (note.thread, receipt.url in note.text) == (3, True)
    shown = run_git("log", "-1", "--format=%an <%ae>|%ad|%P|%T|%B", "--date=iso-strict", branch, cwd=place.remote.path)
    author, date, parent, tree, message = shown.split("|", 4)
    assert (author, date) == ("Ann Example <ann@example.org>", "2026-01-02T03:04:05+00:00")
    assert (parent, tree) == (place.base, place.tree)
    assert message.startswith("Links in sub-folders are resolved from the root\n\nPatchyard-Job: linkcheck-fixes/")


def test_a_branch_alone_needs_no_forge(database: Database, claimed: Claim, place: Place) -> None:
    order = place.order(database, claimed.step_id, to="branch", branch="bot/{job}")
    receipt = _publish(place, database, claimed, replace(order, tokens={place.served.host: TOKEN}))
    assert receipt.ref == "refs/heads/bot/nested-links"
    assert place.branches() == {"refs/heads/bot/nested-links"}
    assert (receipt.url, place.forge.seen) == (None, [])


def test_every_attempt_and_every_host_builds_the_same_commit(
    database: Database, claimed: Claim, place: Place, tmp_path: Path
) -> None:
    order = place.order(database, claimed.step_id, to="branch")
    receipt = _publish(place, database, claimed, order)
    elsewhere = Store.create(tmp_path / "elsewhere.git")
    base_and_fix(elsewhere)
    place.store = elsewhere
    assert _publish(place, database, claimed, order) == receipt
    assert elsewhere.has(receipt.commit or "")


def test_without_a_token_for_the_forge_nothing_is_pushed(database: Database, claimed: Claim, place: Place) -> None:
    order = replace(place.order(database, claimed.step_id), tokens={place.served.host: TOKEN})
    with pytest.raises(CredentialMissing):
        _publish(place, database, claimed, order)
    assert place.branches() == set()


@pytest.mark.parametrize("place", ["gitlab"], indirect=True)
def test_a_text_gives_no_commands_to_the_forge(database: Database, claimed: Claim, place: Place) -> None:
    order = place.order(database, claimed.step_id, text="See\n/approve\n  /merge\n{issue} {unknown}")
    _publish(place, database, claimed, order)
    text = place.forge.requests[0].text
    assert not [line for line in text.splitlines() if line.lstrip().startswith("/")]
    assert text.startswith("See\n&#47;approve\n  &#47;merge\nLinks in sub-folders")
    assert "{unknown}" in text


def test_what_a_value_contains_is_not_filled_in_again(database: Database, place: Place) -> None:
    order = place.order(database, 1)
    publication = replace(publication_of(order), issue="{tree} {key}\n{batch}")
    assert publication.filled("{line}: {issue}!") == "{tree} {key}: {tree} {key}\n{batch}!"


def test_a_refused_branch_opens_no_pull_request(database: Database, claimed: Claim, place: Place) -> None:
    place.remote.hook("update", "echo 'not by robots'; exit 1")
    with pytest.raises(RejectedByRemote, match="not by robots"):
        _publish(place, database, claimed, place.order(database, claimed.step_id))
    assert place.forge.writes() == []


@pytest.mark.parametrize(
    "crash",
    [
        *(f"publish.after_intent:{nth}" for nth in (1, 2, 4)),
        *(f"publish.after_effect:{nth}" for nth in (1, 2, 3, 4)),
    ],
)
@pytest.mark.parametrize("place", ["github"], indirect=True)
def test_a_publication_that_died_goes_on_where_the_world_is(
    database: Database, publish_step: Callable[[], int], place: Place, crash: str
) -> None:
    order = place.order(database, publish_step(), labels=["bot"], comment_on=3)
    assert run_worker(order, crash=crash).returncode == -9
    with move_clock(database, seconds=LEASE_SECONDS + 1):
        sweep_until_expired(database)
        second = run_worker(order)
    assert second.returncode == 0, second.stderr
    (branch,) = place.branches()
    assert place.remote.times_set(branch) == 1
    (made,) = place.forge.requests
    assert made.labels == ["bot"]
    assert len(place.forge.notes) == 1
    assert [seen.path.rsplit("/", 1)[1] for seen in place.forge.writes()] == ["pulls", "labels", "comments"]
