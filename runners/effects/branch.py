"""A branch on a git remote, at one commit that was built before anything was sent.

The push carries a lease on the old id, so a branch that somebody else made or moved is never overwritten, and a push
that is repeated changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.errors import BadInput
from runners.effects.effect import After, Before, Neither, Receipt, Seen
from runners.effects.errors import RejectedByRemote
from runners.effects.git import Git
from runners.effects.pace import Turns
from runners.effects.remote import Remote

DEFAULT_TEMPLATE = "patchyard/{batch}/{job}-{key}"
_FIELDS = re.compile(r"\{(\w+)\}")
# git-check-ref-format(1)
_REFUSED = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|^[./-]|[./]$|\.lock(/|$)")


def branch_name(template: str, *, batch: str, job: str, key: str, where: str = "") -> str:
    """The branch of a job: `{batch}`, `{job}` and `{key}` (8 digits of the idempotency key) stand in the template.

    BadInput for a template that names something else or gives no branch that git takes.
    """
    values = {"batch": _component(batch), "job": _component(job), "key": key[:8]}
    unknown = sorted({name for name in _FIELDS.findall(template) if name not in values})
    if unknown:
        raise BadInput(
            f"{{{unknown[0]}}} is nothing that a branch can be named by",
            where=where,
            remedy="use {batch}, {job} and {key}",
        )
    name = _FIELDS.sub(lambda found: values[found[1]], template)
    if not name or len(name.encode()) > 200 or _REFUSED.search(name) or name in ("HEAD", "@"):
        raise BadInput(f"{name!r} is no name of a branch", where=where, remedy=f"for example {DEFAULT_TEMPLATE}")
    return name


def _component(text: str) -> str:
    """A batch's or job's name as a part of a branch's name; what git refuses becomes a dash."""
    text = re.sub(r"\.(?=\.)|^[.-]|\.$|\.(?=lock$)", "-", text)
    return text or "-"


@dataclass(frozen=True)
class Branch:
    """Sets a branch of a remote to a commit of a bare repository. `old` is where it stands now; None: it is new."""

    key: str
    remote: Remote
    branch: str
    commit: str
    store: Path
    git: Git
    old: str | None = None
    turns: Turns | None = None

    kind = "branch"

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"

    def described(self) -> dict[str, Any]:
        """As `effect.Effect`."""
        return {"remote": self.remote.url, "ref": self.ref, "commit": self.commit, "old": self.old}

    def probe(self) -> Seen:
        """As `effect.Effect`."""
        found = self.git.ref_at(self.remote, self.ref)
        if found == self.commit:
            return After(self._receipt())
        if found == self.old:
            return Before()
        return Neither({**self.described(), "found": found, "why": "the branch stands at a commit that is not ours"})

    def apply(self) -> Receipt:
        """As `effect.Effect`."""
        try:
            self.git.push(self.store, self.remote, self.commit, self.ref, self.old)
        except RejectedByRemote:
            # What git sent twice (see git.py) may have been taken once.
            if self.git.ref_at(self.remote, self.ref) != self.commit:
                raise
        return self._receipt()

    def _receipt(self) -> Receipt:
        return Receipt(ref=self.ref, commit=self.commit)
