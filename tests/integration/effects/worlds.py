"""The worlds that effects are tried on: each can be asked, and counts by itself what was done to it.

An effect is made from plain values (`effect_from`), so that the process that is killed in a test makes the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pygit2.enums import ObjectType

from ledger.forges import TurnLimits
from runners.effects.branch import Branch
from runners.effects.comment import Comment
from runners.effects.commit import Signature, build_commit
from runners.effects.credentials import Credential, Credentials
from runners.effects.effect import Effect
from runners.effects.forge import Thread
from runners.effects.git import Git
from runners.effects.gitea import Gitea
from runners.effects.github import GitHub
from runners.effects.gitlab import GitLab
from runners.effects.labels import Labels
from runners.effects.pace import Gate, Turns
from runners.effects.pull_request import PullRequest
from runners.effects.remote import parse_remote
from runners.workspace.store import EMPTY_TREE, FILE, Change, Store
from tests.fixtures.forge import played_forge
from tests.fixtures.forge_routes import PlayedForge, Request
from tests.fixtures.git_remote import BareRemote, HttpRemotes, SshRemotes, http_remotes

KEY = "5" * 64
BRANCH = "patchyard/fixes/links-55555555"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# The pace of writes has tests of its own.
QUICK = TurnLimits(gap_seconds=0.01)
_FORGES: dict[str, type[GitHub | GitLab | Gitea]] = {"github": GitHub, "gitlab": GitLab, "gitea": Gitea}

Spec = dict[str, Any]


class World(Protocol):
    """One effect and the place where it happens."""

    spec: Spec
    faults: list[str]
    read_faults: list[str]

    def hurry(self) -> None:
        """Lets the client give up before a `late` answer comes."""

    def there(self) -> int:
        """How often the effect is in the world."""

    def writes(self) -> int:
        """How many writes arrived there."""

    def spoil(self) -> None:
        """Makes the world such that it is neither as before nor as after."""


def effect_from(spec: Spec, gate: Gate) -> Effect:
    """The effect that plain values describe."""
    if spec["kind"] == "branch":
        credentials = Credentials(
            {
                spec["host"]: Credential(
                    token=spec["token"], user="pusher", ssh_key=_path(spec["key"]), known_hosts=_path(spec["hosts"])
                )
            }
        )
        remote = parse_remote(spec["url"])
        git = Git(credentials, timeout_seconds=spec["timeout"])
        turns = Turns(remote.host, QUICK) if remote.host else None
        return Branch(KEY, remote, BRANCH, spec["commit"], Path(spec["store"]), git, turns=turns)
    credential = Credential(token=spec["token"])
    forge = _FORGES[spec["forge"]](
        spec["api"], spec["repository"], credential, gate, host=spec["host"], timeout_seconds=spec["timeout"]
    )
    forge.turns = Turns(spec["host"], QUICK)
    if spec["kind"] == "pull_request":
        return PullRequest(KEY, forge, BRANCH, "main", "c" * 40, "Resolve links", "Text <!-- patchyard:x -->", True)
    if spec["kind"] == "labels":
        return Labels(KEY, forge, spec["number"], ("Bot", "fix"))
    return Comment(KEY, forge, Thread("issue", 3), "A fix is proposed", AT)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


class ForgeWorld:
    """A played forge, and one kind of effect on it."""

    def __init__(self, kind: str, forge: PlayedForge) -> None:
        self.forge, self.kind = forge, kind
        self.faults, self.read_faults = forge.faults, forge.read_faults
        self.spec: Spec = {
            "kind": kind,
            "forge": forge.kind,
            "api": forge.api,
            "repository": forge.repository,
            "token": forge.token,
            "host": forge.host,
            "number": 7,
            "timeout": 10.0,
        }
        self._labelled: Request | None = None
        forge.late_seconds = 4
        if kind == "labels":
            self._labelled = forge.add_request(head=BRANCH, base="main", number=7, labels=["old"])

    def hurry(self) -> None:
        self.spec["timeout"] = 1.0

    def there(self) -> int:
        """Requests of the branch, comments, or whole sets of labels, out of the forge's memory."""
        if self._labelled is not None:
            return int({"old", "Bot", "fix"} == set(self._labelled.labels) and len(self._labelled.labels) == 3)
        if self.kind == "comment":
            return sum(note.text.startswith("A fix is proposed") for note in self.forge.notes)
        return len([r for r in self.forge.requests if r.head == BRANCH])

    def writes(self) -> int:
        return len(self.forge.writes())

    def spoil(self) -> None:
        """Somebody closed the request; or the mark of the comment stands under two of them."""
        gate = OpenGate()
        if self.kind == "comment":
            for _ in range(2):
                effect_from(self.spec, gate).apply()
        else:
            effect_from(self.spec, gate).apply()
            self.forge.requests[-1].state = "closed"
        self.forge.seen.clear()


class BranchWorld:
    """A git remote, with the repository that is pushed from."""

    def __init__(self, folder: Path, url: Callable[[BareRemote], str], **spec: Any) -> None:
        self.faults: list[str] = []
        self.read_faults: list[str] = []
        store = Store.create(folder / "mirror.git")
        self.base, self.commit = base_and_fix(store)
        self.remote = BareRemote.create(folder / "served" / "links.git", head=self.base, source=store.path)
        self.spec: Spec = {
            "kind": "branch",
            "url": url(self.remote),
            "store": str(store.path),
            "commit": self.commit,
            "host": "",
            "token": "",
            "key": None,
            "hosts": None,
            "timeout": 30.0,
            **spec,
        }

    def hurry(self) -> None:
        self.spec["timeout"] = 4.0

    def there(self) -> int:
        """How often the branch was set, by the remote's own log; and it stands where it should."""
        assert self.remote.at(f"refs/heads/{BRANCH}") in (self.commit, None)
        return self.remote.times_set(f"refs/heads/{BRANCH}")

    def writes(self) -> int:
        return self.remote.times_set(f"refs/heads/{BRANCH}")

    def spoil(self) -> None:
        """Somebody else has a branch of that name."""
        (self.remote.path / "refs" / "heads" / BRANCH).parent.mkdir(parents=True)
        (self.remote.path / "refs" / "heads" / BRANCH).write_text(self.base + "\n")


class HttpBranchWorld(BranchWorld):
    """A remote over HTTP, which can fail in chosen ways."""

    def __init__(self, folder: Path, served: HttpRemotes) -> None:
        assert served.login is not None
        super().__init__(folder, lambda _remote: served.url("links.git"), host=served.host, token=served.login[1])
        self.faults, self.read_faults, self.served = served.faults, served.read_faults, served
        served.late_seconds = 15

    def writes(self) -> int:
        return sum(method == "POST" and path.endswith("git-receive-pack") for method, path in self.served.seen)


@dataclass
class OpenGate:
    """A gate for what happens outside of any ledger."""

    def closed_seconds(self, forge: str) -> float:
        return 0.0

    def close(self, forge: str, seconds: float, why: str) -> None:
        return


def base_and_fix(store: Store) -> tuple[str, str]:
    """A base commit, and the commit of a fix on it."""
    base_tree = store.with_changes(EMPTY_TREE, {"links.py": Change(FILE, b"root = True\n")})
    base = store.add_object(
        ObjectType.COMMIT, f"tree {base_tree}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nbase\n".encode()
    )
    tree = store.with_changes(base_tree, {"links.py": Change(FILE, b"root = False\n")})
    by = Signature("Someone", "someone@example.org")
    return base, build_commit(store, tree=tree, parent=base, author=by, committer=by, at=AT, message="Fix")


FORGE_WORLDS = [
    f"{kind}-{forge}" for kind in ("pull_request", "comment", "labels") for forge in ("github", "gitlab", "gitea")
]
# Labels are added in the same way everywhere.
FAULTY_WORLDS = [name for name in FORGE_WORLDS if name not in ("labels-gitlab", "labels-gitea")]
WORLDS = ["branch-file", "branch-http", "branch-ssh", *FORGE_WORLDS]


@contextmanager
def world_of(name: str, folder: Path, ssh: Callable[[], SshRemotes]) -> Iterator[World]:
    """The world of that name, for as long as the block runs."""
    kind, _, where = name.partition("-")
    if kind != "branch":
        with played_forge(where) as forge:  # type: ignore[arg-type]
            yield ForgeWorld(kind, forge)
    elif where == "http":
        with http_remotes(folder / "served", ("pusher", "s3cret-of-the-tests")) as served:
            yield HttpBranchWorld(folder, served)
    elif where == "ssh":
        server = ssh()
        yield BranchWorld(
            folder,
            lambda remote: server.url(remote.path),
            host=server.host,
            key=str(server.key),
            hosts=str(server.known_hosts),
        )
    else:
        yield BranchWorld(folder, lambda remote: str(remote.path))
