"""GitLab's REST API (v4): merge requests and notes."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from urllib.parse import quote

from runners.effects.credentials import Credential
from runners.effects.errors import AlreadyThere, RejectedByRemote, RemoteBusy
from runners.effects.forge import Comment, Pull, PullState, Thread, list_as, read_as, written_as
from runners.effects.http import JsonApi, message_of
from runners.effects.pace import OTHERS, Gate, Turns

_PAGE = 100
_MOST_PAGES = 30
# A locked request is one that is being merged.
_STATES: dict[str, PullState] = {"opened": "open", "locked": "open", "merged": "merged", "closed": "closed"}


class GitLab:
    """One project (its full path) at a GitLab."""

    def __init__(
        self, api: str, repository: str, credential: Credential, gate: Gate, *, host: str, timeout_seconds: float = 30.0
    ) -> None:
        """`host` is the one that pushes go to; both share its turns."""
        self.turns, self._repository = Turns(host, OTHERS), repository
        headers = {"PRIVATE-TOKEN": credential.token}
        self._api = JsonApi(
            api,
            forge=host,
            gate=gate,
            headers=headers,
            secrets=[credential.token],
            timeout_seconds=timeout_seconds,
        )
        self._path = f"/projects/{quote(repository, safe='')}"

    @property
    def where(self) -> str:
        return f"{self._api.base} {self._repository}"

    def pulls(self, head: str, base: str) -> list[Pull]:
        """As `forge.Forge`."""
        rows = self._api.get(
            f"{self._path}/merge_requests", source_branch=head, target_branch=base, state="all", per_page=_PAGE
        ).body
        found = list_as(self.where, lambda row: _pull(row) if _fits(row, head, base) else None, rows)
        return [pull for pull in found if pull is not None]

    def open_pull(self, *, head: str, base: str, title: str, text: str, draft: bool) -> Pull:
        """As `forge.Forge`. A duplicate is 409."""
        answer = self._api.send(
            "POST",
            f"{self._path}/merge_requests",
            {
                "source_branch": head,
                "target_branch": base,
                "title": f"Draft: {title}" if draft else title,
                "description": _without_commands(text),
            },
            data=(400, 409, 422),
        )
        if answer.status >= 400:
            said = message_of(answer.body)
            if answer.status == 409:
                raise AlreadyThere(f"{self.where}: {said}")
            if "source" in said and "does not exist" in said:
                raise RemoteBusy(f"{self.where}: the branch is not seen yet ({said})", retry_after_seconds=5.0)
            raise RejectedByRemote(self.where, f"HTTP {answer.status}: {said}"[:300])
        return written_as(self.where, _pull, answer.body)

    def labels(self, number: int) -> set[str]:
        """As `forge.Forge`."""
        body = self._api.get(f"{self._path}/merge_requests/{number}").body
        return read_as(self.where, lambda row: set(map(str, row["labels"])), body)

    def add_labels(self, number: int, names: tuple[str, ...]) -> None:
        """As `forge.Forge`. A comma separates labels there, so none can have one."""
        if any("," in name for name in names):
            raise RejectedByRemote(self.where, "a label with a comma")
        self._api.send("PUT", f"{self._path}/merge_requests/{number}", {"add_labels": ",".join(names)})

    def comments(self, thread: Thread, since: datetime) -> list[Comment]:
        """As `forge.Forge`: the newest first, until they are older."""
        found: list[Comment] = []
        for page in range(1, _MOST_PAGES + 1):
            path = self._notes(thread)
            answer = self._api.get(path, sort="desc", order_by="created_at", per_page=_PAGE, page=page)
            rows = list_as(
                self.where,
                lambda row: (self._comment(thread, row), datetime.fromisoformat(row["created_at"])),
                answer.body,
            )
            found += [comment for comment, _ in rows]
            if len(rows) < _PAGE or rows[-1][1] < since:
                return found
        raise RejectedByRemote(self.where, f"{thread.of} {thread.number} has too many comments to look through")

    def add_comment(self, thread: Thread, text: str) -> Comment:
        """As `forge.Forge`."""
        answer = self._api.send("POST", self._notes(thread), {"body": _without_commands(text)})
        return written_as(self.where, lambda row: self._comment(thread, row), answer.body)

    def _notes(self, thread: Thread) -> str:
        kind = "merge_requests" if thread.of == "pull" else "issues"
        return f"{self._path}/{kind}/{thread.number}/notes"

    def _comment(self, thread: Thread, row: dict[str, Any]) -> Comment:
        kind = "merge_requests" if thread.of == "pull" else "issues"
        web = self._api.base.removesuffix("/api/v4")
        return Comment(
            row["id"], f"{web}/{self._repository}/-/{kind}/{thread.number}#note_{row['id']}", row.get("body") or ""
        )


def _fits(row: dict[str, Any], head: str, base: str) -> bool:
    same = row.get("source_project_id") == row.get("target_project_id")
    return bool(row["source_branch"] == head and row["target_branch"] == base and same)


def _without_commands(text: str) -> str:
    """A line that starts with a slash is a command to GitLab, done with the token's rights; here it is only text."""
    return re.sub(r"^(\s*)/", r"\1&#47;", text, flags=re.MULTILINE)


def _pull(row: dict[str, Any]) -> Pull:
    return Pull(row["iid"], row["web_url"], _STATES[row["state"]], row.get("description") or "", row.get("sha"))
