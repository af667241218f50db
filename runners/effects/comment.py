"""A comment on an issue or a pull request, written once and found again by the mark in its text.

No forge refuses a second comment, so this effect leans on the probe more than the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ledger.records.base import canonical_json, sha256_hex
from runners.effects.effect import After, Before, Neither, Receipt, Seen
from runners.effects.forge import PAYLOAD_DIGITS, Forge, Thread, marked, payload_of
from runners.effects.forge import Comment as Found
from runners.effects.pace import Turns


@dataclass(frozen=True)
class Comment:
    """Says `text` on a thread. `since` is a time before which this comment cannot have been written."""

    key: str
    forge: Forge
    thread: Thread
    text: str
    since: datetime

    kind = "comment"

    @property
    def turns(self) -> Turns | None:
        """As `effect.Effect`."""
        return self.forge.turns

    def described(self) -> dict[str, Any]:
        """As `effect.Effect`."""
        return {
            "repository": self.forge.where,
            "thread": self.thread.of,
            "number": self.thread.number,
            "text": self.text,
        }

    def probe(self) -> Seen:
        """As `effect.Effect`."""
        found = [c for c in self.forge.comments(self.thread, self.since) if payload_of(c.text, self.key) is not None]
        if not found:
            return Before()
        if len(found) > 1:
            return self._neither(found, "several comments bear the mark of this one")
        if payload_of(found[0].text, self.key) != self._payload():
            return self._neither(found, "the comment was made with another payload")
        return After(self._receipt(found[0]))

    def apply(self) -> Receipt:
        """As `effect.Effect`."""
        return self._receipt(self.forge.add_comment(self.thread, marked(self.text, self.key, self._payload())))

    def _payload(self) -> str:
        return sha256_hex(canonical_json(self.described()))[:PAYLOAD_DIGITS]

    def _receipt(self, comment: Found) -> Receipt:
        return Receipt(url=comment.url, number=comment.id)

    def _neither(self, found: list[Found], why: str) -> Neither:
        return Neither(
            {
                "why": why,
                "repository": self.forge.where,
                self.thread.of: self.thread.number,
                "found": [{"id": comment.id, "url": comment.url} for comment in found],
            }
        )
