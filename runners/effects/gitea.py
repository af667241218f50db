"""The REST API (v1) of Gitea and Forgejo: pull requests and comments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from runners.effects.credentials import Credential
from runners.effects.errors import AlreadyThere
from runners.effects.forge import Comment, Pull, PullState, Thread, list_as, read_as, written_as
from runners.effects.http import JsonApi, message_of
from runners.effects.pace import OTHERS, Gate, Turns

_PAGE = 50
_MOST_PAGES = 20


class Gitea:
    """One repository (`OWNER/NAME`) at a Gitea or Forgejo."""

    def __init__(
        self, api: str, repository: str, credential: Credential, gate: Gate, *, host: str, timeout_seconds: float = 30.0
    ) -> None:
        """`host` is the one that pushes go to; both share its turns."""
        self.turns, self._repository = Turns(host, OTHERS), repository
        headers = {"Authorization": f"token {credential.token}"}
        self._api = JsonApi(
            api,
            forge=host,
            gate=gate,
            headers=headers,
            secrets=[credential.token],
            timeout_seconds=timeout_seconds,
        )
        self._path = f"/repos/{quote(repository)}"

    @property
    def where(self) -> str:
        return f"{self._api.base} {self._repository}"

    def pulls(self, head: str, base: str) -> list[Pull]:
        """As `forge.Forge`.

        The look-up by branches answers with one request of any state, and which one is not said; a closed one may hide
        an open one, so then the open ones are gone through as well.
        """
        answer = self._api.get(f"{self._path}/pulls/{quote(base, safe='')}/{quote(head)}", missing=True)
        if answer.status == 404:
            return []
        first = read_as(self.where, _pull, answer.body)
        if first.state != "closed":
            return [first]
        return [first, *(pull for pull in self._open(head, base) if pull.number != first.number)]

    def _open(self, head: str, base: str) -> list[Pull]:
        found: list[Pull] = []
        for page in range(1, _MOST_PAGES + 1):
            rows = list_as(
                self.where,
                lambda row: _pull(row) if _fits(row, head, base) else None,
                self._api.get(f"{self._path}/pulls", state="open", limit=_PAGE, page=page).body,
            )
            found += [pull for pull in rows if pull is not None]
            if not rows:  # a server may have smaller pages than were asked for
                break
        return found

    def open_pull(self, *, head: str, base: str, title: str, text: str, draft: bool) -> Pull:
        """As `forge.Forge`. A duplicate is 409; a draft is one by its title."""
        answer = self._api.send(
            "POST",
            f"{self._path}/pulls",
            {"head": head, "base": base, "title": f"WIP: {title}" if draft else title, "body": text},
            data=(409,),
        )
        if answer.status == 409:
            raise AlreadyThere(f"{self.where}: {message_of(answer.body)}")
        return written_as(self.where, _pull, answer.body)

    def labels(self, number: int) -> set[str]:
        """As `forge.Forge`."""
        rows = self._api.get(f"{self._path}/issues/{number}/labels").body
        return set(list_as(self.where, lambda row: str(row["name"]), rows))

    def add_labels(self, number: int, names: tuple[str, ...]) -> None:
        """As `forge.Forge`; the labels must be there (Gitea makes none)."""
        self._api.send("POST", f"{self._path}/issues/{number}/labels", {"labels": list(names)})

    def comments(self, thread: Thread, since: datetime) -> list[Comment]:
        """As `forge.Forge`; this list has no pages."""
        after = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        rows = self._api.get(f"{self._path}/issues/{thread.number}/comments", since=after).body
        return list_as(self.where, _comment, rows)

    def add_comment(self, thread: Thread, text: str) -> Comment:
        """As `forge.Forge`."""
        answer = self._api.send("POST", f"{self._path}/issues/{thread.number}/comments", {"body": text})
        return written_as(self.where, _comment, answer.body)


def _comment(row: dict[str, Any]) -> Comment:
    return Comment(row["id"], row.get("html_url"), row.get("body") or "")


def _fits(row: dict[str, Any], head: str, base: str) -> bool:
    # Of a branch that is gone, `ref` is that of the request, and `label` still the branch.
    return head in (row["head"].get("ref"), row["head"].get("label")) and bool(row["base"]["ref"] == base)


def _pull(row: dict[str, Any]) -> Pull:
    state: PullState = "merged" if row.get("merged") else "open" if row["state"] == "open" else "closed"
    return Pull(row["number"], row["html_url"], state, row.get("body") or "", row["head"].get("sha"))
