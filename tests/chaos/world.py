"""Where the effects of jobs go, and where they are looked for: each place by itself, not by what the workers say.

A place (the ledger's patches, a git remote, a forge) is a World; a run asks each how often the effect of a job is in
it. Exactly once is the promise: more is a duplicate, less is a loss. The remote and the forge are real servers that can
be made to fail, before and after what they were asked to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ledger.connect import Database
from ledger.events import read_events
from ledger.objects import get_object
from ledger.reads import find_job
from ledger.records.publish import Publish
from ledger.records.source import SourceRef
from runners.effects.target import complete_publish
from tests.chaos.jobs import Repository, Shape
from tests.fixtures.forge import played_forge
from tests.fixtures.forge_routes import PlayedForge
from tests.fixtures.git_remote import BareRemote, HttpRemotes, http_remotes

_LOGIN = ("pusher", "s3cret-of-the-tests")
_NAME = "acme/linkcheck"
_ISSUE = 3


class World(Protocol):
    """A place that effects go to."""

    @property
    def kind(self) -> str:
        """The effect's name in tables."""

    def expects(self, shape: Shape) -> bool:
        """Whether a verified job of this shape has an effect here."""

    def count(self, ref: str) -> int:
        """How often the effect of the job is in the world."""


@dataclass(frozen=True)
class Patches:
    """The ledger's own patches: the bytes are there, under the name that the job and each receipt give."""

    db: Database
    kind: str = "patch"

    def expects(self, shape: Shape) -> bool:
        """See World."""
        return True

    def count(self, ref: str) -> int:
        """See World."""
        job = find_job(self.db, ref)
        receipts = [event.body["sha256"] for event in read_events(self.db, job.id) if event.kind == "published"]
        if job.patch_sha256 is None:
            return len(receipts)
        get_object(self.db, job.patch_sha256)  # raises when the bytes are not there or are others
        return sum(receipt == job.patch_sha256 for receipt in receipts)


@dataclass(frozen=True)
class Branches:
    """A git remote, which has a line in its log for every time that a branch was set."""

    remote: BareRemote
    kind: str = "branch"

    def expects(self, shape: Shape) -> bool:
        """See World."""
        return shape.to in ("branch", "pull_request")

    def count(self, ref: str) -> int:
        """See World."""
        ours = [name for name in self.remote.refs() if name.startswith(f"refs/heads/patchyard/{ref}-")]
        return sum(self.remote.times_set(name) for name in ours)


@dataclass(frozen=True)
class Requests:
    """A forge, which remembers every request that it made."""

    forge: PlayedForge
    kind: str = "pull_request"

    def expects(self, shape: Shape) -> bool:
        """See World."""
        return shape.to == "pull_request"

    def count(self, ref: str) -> int:
        """See World."""
        return sum(request.head.startswith(f"patchyard/{ref}-") for request in self.forge.requests)


@dataclass(frozen=True)
class Comments:
    """What was said on the forge's issue about a job's request. No forge refuses to hear the same thing twice."""

    forge: PlayedForge
    kind: str = "comment"

    def expects(self, shape: Shape) -> bool:
        """See World."""
        return shape.to == "pull_request"

    def count(self, ref: str) -> int:
        """See World."""
        ours = [request.number for request in self.forge.requests if request.head.startswith(f"patchyard/{ref}-")]
        said = [note.text.split() for note in self.forge.notes]
        return sum(any(word.endswith(f"/pull/{number}") for word in words) for words in said for number in ours)


@dataclass
class Outside:
    """A remote and a forge, and what a publish worker needs for them."""

    served: HttpRemotes
    remote: BareRemote
    forge: PlayedForge
    credentials: Path

    def publish(self, shape: Shape, batch: str, job: str) -> dict[str, Any]:
        """What a job of this shape says of its publication."""
        told: dict[str, Any] = {"to": shape.to, "remote": self.served.url(f"{_NAME}.git")}
        if shape.to == "pull_request":
            told |= {"forge": self.forge.kind, "api": self.forge.api, "comment_on": _ISSUE}
        source = SourceRef(kind="git", location=str(self.remote.path))
        return complete_publish(Publish.model_validate(told), source, batch=batch, job=job).plain()

    def worlds(self) -> tuple[World, ...]:
        """What is in both."""
        return Branches(self.remote), Requests(self.forge), Comments(self.forge)


@contextmanager
def outside(folder: Path, repository: Repository) -> Iterator[Outside]:
    """Both run for as long as the block does."""
    served_from = folder / "served"
    (served_from / _NAME).parent.mkdir(parents=True)
    remote = BareRemote.create(served_from / f"{_NAME}.git", head=repository.commit, source=repository.path)
    with http_remotes(served_from, _LOGIN) as served, played_forge("github") as forge:
        forge.commit_of = lambda branch: remote.at(f"refs/heads/{branch}") or "0" * 40
        credentials = folder / "credentials.toml"
        credentials.touch(mode=0o600)
        credentials.write_text(
            f'["{served.host}"]\nuser = "{_LOGIN[0]}"\ntoken = "{_LOGIN[1]}"\n'
            f'["{forge.host}"]\ntoken = "{forge.token}"\n'
        )
        yield Outside(served, remote, forge, credentials)


@dataclass
class Tally:
    """Effects of one kind over a run."""

    kind: str
    expected: int = 0
    seen: int = 0
    duplicated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def add(self, ref: str, wanted: int, seen: int) -> None:
        """Counts one job."""
        self.expected += wanted
        self.seen += seen
        self.duplicated += [ref] * max(seen - wanted, 0)
        self.lost += [ref] * max(wanted - seen, 0)


def tally(world: World, verified: Iterable[tuple[str, Shape]], others: Iterable[str]) -> Tally:
    """Counts the effects of jobs: of the `verified`, those that this world expects once, of the `others` none."""
    total = Tally(world.kind)
    for ref, shape in verified:
        total.add(ref, int(world.expects(shape)), world.count(ref))
    for ref in others:
        total.add(ref, 0, world.count(ref))
    return total
