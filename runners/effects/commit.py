"""The commit of a publication: the same job and tree give the same commit id, in every attempt and on every host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from pygit2.enums import ObjectType

from runners.workspace.errors import ObjectUnreadable
from runners.workspace.store import Store

_NOT_IN_NAMES = re.compile(r"[<>\x00-\x1f\x7f]+")
_NOT_IN_MESSAGES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Signature:
    """Who a commit is by: name and address as git has them."""

    name: str = "patchyard"
    email: str = "patchyard@localhost"

    def line(self, at: datetime) -> str:
        """The line of a commit, with a time in UTC."""
        name = _NOT_IN_NAMES.sub(" ", self.name).strip(" .,:;\"'") or "patchyard"
        email = _NOT_IN_NAMES.sub("", self.email).strip()
        return f"{name} <{email}> {int(at.timestamp())} +0000"


def build_commit(
    store: Store, *, tree: str, parent: str, author: Signature, committer: Signature, at: datetime, message: str
) -> str:
    """Writes the commit of `tree` on top of `parent` into `store`; its id. Raises ObjectUnreadable.

    `at` is the time of both signatures, to the second; it must not change between attempts.
    """
    for needed in (tree, parent):
        if not store.has(needed):
            raise ObjectUnreadable(needed)
    at = at.astimezone(UTC)
    text = _NOT_IN_MESSAGES.sub("", message.replace("\r\n", "\n")).strip() + "\n"
    lines = [f"tree {tree}", f"parent {parent}", f"author {author.line(at)}", f"committer {committer.line(at)}"]
    return store.add_object(ObjectType.COMMIT, ("\n".join(lines) + "\n\n" + text).encode("utf-8", "replace"))
