"""A request to merge a branch, opened once or adopted, on any forge.

It is found by its branch and by the mark in its text. One without the mark is adopted only if it is the one open
request for the branch and stands at exactly our commit. A request that was closed, or several, is for a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.records.base import canonical_json, sha256_hex
from runners.effects.effect import After, Before, Neither, Receipt, Seen
from runners.effects.forge import PAYLOAD_DIGITS, Forge, Pull, marked, payload_of
from runners.effects.pace import Turns


@dataclass(frozen=True)
class PullRequest:
    """Asks a forge's repository to merge `head`, which stands at `commit`, into `base`."""

    key: str
    forge: Forge
    head: str
    base: str
    commit: str
    title: str
    text: str
    draft: bool = False

    kind = "pull_request"

    @property
    def turns(self) -> Turns | None:
        """As `effect.Effect`."""
        return self.forge.turns

    def described(self) -> dict[str, Any]:
        """As `effect.Effect`."""
        return {
            "repository": self.forge.where,
            "head": self.head,
            "base": self.base,
            "commit": self.commit,
            "title": self.title,
            "text": self.text,
            "draft": self.draft,
        }

    def probe(self) -> Seen:
        """As `effect.Effect`."""
        found = self.forge.pulls(self.head, self.base)
        ours = [pull for pull in found if payload_of(pull.text, self.key) is not None]
        if not found:
            return Before()
        if len(ours) > 1:
            return self._neither(ours, "several requests bear the mark of this one")
        if ours:
            return self._judge_ours(ours[0])
        if len(found) == 1 and found[0].state == "open" and found[0].commit == self.commit:
            return After(self._receipt(found[0], adopted=True))
        return self._neither(found, "the branch has requests that do not bear our mark")

    def _judge_ours(self, pull: Pull) -> Seen:
        if payload_of(pull.text, self.key) != self._payload():
            return self._neither([pull], "the request was made with another payload")
        if pull.state == "closed":
            return self._neither([pull], "the request was closed")
        return After(self._receipt(pull))

    def apply(self) -> Receipt:
        """As `effect.Effect`."""
        text = marked(self.text, self.key, self._payload())
        pull = self.forge.open_pull(head=self.head, base=self.base, title=self.title, text=text, draft=self.draft)
        return self._receipt(pull)

    def _payload(self) -> str:
        return sha256_hex(canonical_json(self.described()))[:PAYLOAD_DIGITS]

    def _receipt(self, pull: Pull, *, adopted: bool = False) -> Receipt:
        return Receipt(
            ref=f"refs/heads/{self.head}", commit=self.commit, url=pull.url, number=pull.number, adopted=adopted
        )

    def _neither(self, found: list[Pull], why: str) -> Neither:
        return Neither(
            {
                "why": why,
                "repository": self.forge.where,
                "ref": f"refs/heads/{self.head}",
                "commit": self.commit,
                "url": found[0].url,
                "number": found[0].number,
                "found": [pull.plain() for pull in found],
            }
        )
