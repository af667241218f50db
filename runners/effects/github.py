"""GitHub's REST API (version 2022-11-28), on github.com and on an Enterprise Server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from runners.effects.credentials import Credential
from runners.effects.errors import AlreadyThere, RejectedByRemote, RemoteBusy
from runners.effects.forge import Comment, Pull, PullState, Thread, list_as, written_as
from runners.effects.http import JsonApi, message_of
from runners.effects.pace import GITHUB, Gate, Turns

_PAGE = 100
_MOST_PAGES = 30


class GitHub:
    """One repository (`OWNER/NAME`) at GitHub."""

    def __init__(
        self, api: str, repository: str, credential: Credential, gate: Gate, *, host: str, timeout_seconds: float = 30.0
    ) -> None:
        """`host` is the one that pushes go to; both share its turns."""
        self.turns, self._repository = Turns(host, GITHUB), repository
        headers = {
            "Authorization": f"Bearer {credential.token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
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
        """As `forge.Forge`. A filter that GitHub does not understand lists everything, so it is filtered here too."""
        owner = self._repository.split("/")[0]
        rows = self._api.get(f"{self._path}/pulls", head=f"{owner}:{head}", base=base, state="all", per_page=_PAGE).body
        found = list_as(self.where, lambda row: _pull(row) if self._fits(row, head, base) else None, rows)
        return [pull for pull in found if pull is not None]

    def _fits(self, row: dict[str, Any], head: str, base: str) -> bool:
        source = (row["head"].get("repo") or {}).get("full_name") or self._repository
        same = source.lower() == self._repository.lower()
        return bool(row["head"]["ref"] == head and row["base"]["ref"] == base and same)

    def open_pull(self, *, head: str, base: str, title: str, text: str, draft: bool) -> Pull:
        """As `forge.Forge`. A duplicate is 422 with code `custom`, told from the others by its message."""
        path = f"{self._path}/pulls"
        answer = self._api.send(
            "POST", path, {"title": title, "head": head, "base": base, "body": text, "draft": draft}, data=(422,)
        )
        if answer.status == 422:
            said = message_of(answer.body)
            if "already exists" in said:
                raise AlreadyThere(f"{self.where}: {said}")
            if _branch_not_seen(answer.body):
                raise RemoteBusy(f"{self.where}: the branch is not seen yet ({said})", retry_after_seconds=5.0)
            raise RejectedByRemote(self.where, f"HTTP 422: {said}"[:300])
        return written_as(self.where, _pull, answer.body)

    def labels(self, number: int) -> set[str]:
        """As `forge.Forge`."""
        rows = self._api.get(f"{self._path}/issues/{number}/labels", per_page=_PAGE).body
        return set(list_as(self.where, lambda row: str(row["name"]), rows))

    def add_labels(self, number: int, names: tuple[str, ...]) -> None:
        """As `forge.Forge`."""
        self._api.send("POST", f"{self._path}/issues/{number}/labels", {"labels": list(names)})

    def comments(self, thread: Thread, since: datetime) -> list[Comment]:
        """As `forge.Forge`; a pull request's comments are those of the issue of its number."""
        found: list[Comment] = []
        after = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for page in range(1, _MOST_PAGES + 1):
            path = f"{self._path}/issues/{thread.number}/comments"
            rows = list_as(self.where, _comment, self._api.get(path, since=after, per_page=_PAGE, page=page).body)
            found += rows
            if len(rows) < _PAGE:
                return found
        raise RejectedByRemote(self.where, f"{thread.of} {thread.number} has too many comments to look through")

    def add_comment(self, thread: Thread, text: str) -> Comment:
        """As `forge.Forge`."""
        answer = self._api.send("POST", f"{self._path}/issues/{thread.number}/comments", {"body": text})
        return written_as(self.where, _comment, answer.body)


def _pull(row: dict[str, Any]) -> Pull:
    state: PullState = "merged" if row.get("merged_at") else "open" if row["state"] == "open" else "closed"
    return Pull(row["number"], row["html_url"], state, row.get("body") or "", row["head"].get("sha"))


def _comment(row: dict[str, Any]) -> Comment:
    return Comment(row["id"], row.get("html_url"), row.get("body") or "")


def _branch_not_seen(body: Any) -> bool:
    """Whether the API does not know the branch that was just pushed: it lags behind git."""
    errors = body.get("errors") if isinstance(body, dict) else None
    return isinstance(errors, list) and any(
        isinstance(error, dict) and error.get("field") == "head" and error.get("code") in ("invalid", "missing")
        for error in errors
    )
