"""What every forge can do, in one shape: requests to merge a branch, labels, comments.

GitHub, GitLab and Gitea (with Forgejo) differ in names and status codes only; those differences end here. Our own
things are found again by a mark in their text, an HTML comment that no reader sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from runners.effects.errors import NotAForge, OutcomeUnknown
from runners.effects.pace import Turns

T = TypeVar("T")

PullState = Literal["open", "closed", "merged"]
PAYLOAD_DIGITS = 16
_MARK = re.compile(rf"<!-- patchyard:(?P<key>[0-9a-f]{{64}}) (?P<payload>[0-9a-f]{{{PAYLOAD_DIGITS}}}) -->")


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull or merge request. `commit` is the head's, where the forge tells it."""

    number: int
    url: str
    state: PullState
    text: str
    commit: str | None

    def plain(self) -> dict[str, Any]:
        """For a person who has to decide."""
        return {"number": self.number, "url": self.url, "state": self.state, "commit": self.commit}


@dataclass(frozen=True, slots=True)
class Thread:
    """What a comment is on: an issue or a pull request, by its number."""

    of: Literal["issue", "pull"]
    number: int


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment of a thread."""

    id: int
    url: str | None
    text: str


class Forge(Protocol):
    """One repository on one forge. Reads raise EffectRefused and Temporary; writes OutcomeUnknown too."""

    @property
    def turns(self) -> Turns:
        """Whose turns its writes need."""

    @property
    def where(self) -> str:
        """The repository, for people and fingerprints."""

    def pulls(self, head: str, base: str) -> list[Pull]:
        """Requests, of any state, to merge the repository's branch `head` into `base`."""

    def open_pull(self, *, head: str, base: str, title: str, text: str, draft: bool) -> Pull:
        """Opens one. AlreadyThere when the forge says that there is one."""

    def labels(self, number: int) -> set[str]:
        """The labels of a request."""

    def add_labels(self, number: int, names: tuple[str, ...]) -> None:
        """Adds labels to a request; those that it has are left alone."""

    def comments(self, thread: Thread, since: datetime) -> list[Comment]:
        """The comments of a thread that were written or changed since then (older ones may be among them)."""

    def add_comment(self, thread: Thread, text: str) -> Comment:
        """Writes a comment."""


def marked(text: str, key: str, payload: str) -> str:
    """The text with the mark of an effect (`payload`: PAYLOAD_DIGITS digits); marks already in it are taken out."""
    return f"{unmarked(text).rstrip()}\n\n<!-- patchyard:{key} {payload} -->\n"


def unmarked(text: str) -> str:
    """The text without anything that could be taken for a mark: it may come from a model."""
    return re.sub(r"<!--\s*patchyard:", "<!-- ", text)


def payload_of(text: str, key: str) -> str | None:
    """The payload's digits in the mark of the effect `key`, or None if the text does not bear it."""
    return next((found["payload"] for found in _MARK.finditer(text) if found["key"] == key), None)


def read_as(where: str, make: Callable[[Any], T], body: Any) -> T:
    """What was read, made of the answer's body. NotAForge if that has another shape."""
    try:
        return make(body)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise NotAForge(where, "JSON of another shape than expected") from None


def list_as(where: str, make: Callable[[Any], T], body: Any) -> list[T]:
    """As `read_as`, of a list."""
    if not isinstance(body, list):
        raise NotAForge(where, "JSON of another shape than expected")
    return [read_as(where, make, row) for row in body]


def written_as(where: str, make: Callable[[Any], T], body: Any) -> T:
    """What was written, made of the answer's body. OutcomeUnknown if that has another shape."""
    try:
        return read_as(where, make, body)
    except NotAForge as odd:
        raise OutcomeUnknown(odd.message) from None
