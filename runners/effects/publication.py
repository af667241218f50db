"""A verified tree made public as its job asks: the commit, the branch, the request to merge it, labels, a comment.

Each part is an effect of its own with its own intent and receipt, in this order, so that a publication that died half
way goes on where the world is. All keys come from what is published and where, so every attempt has the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from ledger.records.base import canonical_json, sha256_hex
from ledger.records.publish import Publish
from runners.effects.branch import Branch, branch_name
from runners.effects.comment import Comment
from runners.effects.commit import build_commit
from runners.effects.credentials import Credentials
from runners.effects.effect import Book, Done, Effect, Patience, Receipt, perform
from runners.effects.errors import CredentialMissing
from runners.effects.forge import Forge, Thread, unmarked
from runners.effects.git import Git
from runners.effects.gitea import Gitea
from runners.effects.github import GitHub
from runners.effects.gitlab import GitLab
from runners.effects.labels import Labels
from runners.effects.pace import Gate, turns_of
from runners.effects.pull_request import PullRequest
from runners.effects.remote import Remote, parse_remote
from runners.effects.target import signature_of
from runners.workspace.store import Store

_FORGES: dict[str, type[GitHub | GitLab | Gitea]] = {"github": GitHub, "gitlab": GitLab, "gitea": Gitea}
DEFAULT_PATIENCE = Patience()
_MAX_TITLE_CHARS = 120
_MAX_TEXT_CHARS = 60_000
_CLOCKS_APART = timedelta(hours=1)
_TEXT = (
    "{issue}\n\n---\nMade by an agent of patchyard for the job `{batch}/{job}`, and verified on the tree `{tree}` "
    "before it was published.\n"
)


@dataclass(frozen=True)
class Publication:
    """What becomes public. `publish` is complete (`complete_publish`); `at`, the commit's time, is the same always."""

    publish: Publish
    batch: str
    job: str
    issue: str
    tree: str
    base_commit: str
    at: datetime

    @property
    def key(self) -> str:
        """The idempotency key of the whole; those of its parts follow from it."""
        content = [self.batch, self.job, self.tree, self.base_commit, self.publish.remote, self.publish.repository]
        return sha256_hex(canonical_json(["publication", *content]))

    def key_of(self, part: str) -> str:
        """The idempotency key of one part."""
        return sha256_hex(canonical_json([part, self.key]))

    def filled(self, template: str) -> str:
        """A template with this job's values; what a value contains is not filled in again."""
        line = next((line.strip() for line in self.issue.splitlines() if line.strip()), f"{self.batch}/{self.job}")
        values = {
            "batch": self.batch,
            "job": self.job,
            "key": self.key[:8],
            "tree": self.tree,
            "issue": self.issue.strip(),
            "line": _cut(line, _MAX_TITLE_CHARS),
        }
        pieces = template.split("{")
        out = [pieces[0]]
        for piece in pieces[1:]:
            name, closed, rest = piece.partition("}")
            out.append(values[name] + rest if closed and name in values else "{" + piece)
        return "".join(out)


@dataclass(frozen=True)
class Publisher:
    """What a publish worker brings: its credentials, the forges' gate, and its patience."""

    credentials: Credentials
    gate: Gate
    patience: Patience = DEFAULT_PATIENCE
    git_timeout_seconds: float = 120.0
    sleep: Callable[[float], None] = field(default=time.sleep)

    def publish(self, publication: Publication, store: Store, book: Book) -> Receipt:
        """Makes all parts, each at most once; the receipt of the request, or of the branch if there is none.

        `store` has the tree and the base commit with its history. Raises as `effect.perform`, and ObjectUnreadable.
        """
        remote = parse_remote(publication.publish.remote or "")
        branch = self._branch(publication, store, remote)
        if publication.publish.to == "branch":
            return self._perform(branch, book).receipt
        forge = self._forge(publication.publish, remote)
        self._perform(branch, book)
        request = self._perform(self._request(publication, forge, branch), book).receipt
        for effect in self._afterwards(publication, forge, request):
            self._perform(effect, book)
        return request

    def _perform(self, effect: Effect, book: Book) -> Done:
        return perform(effect, book, patience=self.patience, sleep=self.sleep)

    def _branch(self, publication: Publication, store: Store, remote: Remote) -> Branch:
        publish = publication.publish
        author = signature_of(publish.author)
        trailers = f"Patchyard-Job: {publication.batch}/{publication.job}\nPatchyard-Tree: {publication.tree}"
        commit = build_commit(
            store,
            tree=publication.tree,
            parent=publication.base_commit,
            author=author,
            committer=author,
            at=publication.at,
            message=f"{_cut(publication.filled('{line}'), 72)}\n\n{trailers}\n",
        )
        return Branch(
            key=publication.key_of("branch"),
            remote=remote,
            branch=branch_name(publish.branch, batch=publication.batch, job=publication.job, key=publication.key),
            commit=commit,
            store=store.path,
            git=Git(self.credentials, timeout_seconds=self.git_timeout_seconds),
            turns=turns_of(remote),
        )

    def _forge(self, publish: Publish, remote: Remote) -> Forge:
        """The forge's repository. CredentialMissing before anything is pushed that could not be finished."""
        api = urlsplit(publish.api or "")
        credential = self.credentials.of(api.netloc)
        if credential is None or not credential.token:
            raise CredentialMissing(api.netloc, "no token in the publish worker's credentials")
        made = _FORGES[publish.forge or ""]
        return made(publish.api or "", publish.repository or "", credential, self.gate, host=remote.host or api.netloc)

    def _request(self, publication: Publication, forge: Forge, branch: Branch) -> PullRequest:
        publish = publication.publish
        return PullRequest(
            key=publication.key_of("pull_request"),
            forge=forge,
            head=branch.branch,
            base=publish.base,
            commit=branch.commit,
            title=_cut(publication.filled(publish.title), 2 * _MAX_TITLE_CHARS),
            text=unmarked(_cut(publication.filled(publish.text or _TEXT), _MAX_TEXT_CHARS)),
            draft=publish.draft,
        )

    def _afterwards(self, publication: Publication, forge: Forge, request: Receipt) -> list[Effect]:
        publish, effects = publication.publish, list[Effect]()
        if publish.labels and request.number:
            effects.append(Labels(publication.key_of("labels"), forge, request.number, publish.labels))
        if publish.comment_on:
            effects.append(
                Comment(
                    publication.key_of("comment"),
                    forge,
                    Thread("issue", publish.comment_on),
                    f"A fix of this is proposed in {request.url}",
                    publication.at - _CLOCKS_APART,
                )
            )
        return effects


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
