"""Where a verified patch goes, as a job states it; after submission nothing is left to be guessed by a worker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from ledger.records.base import Record

ForgeName = Literal["github", "gitlab", "gitea"]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=300)]


class Publish(Record):
    """`patch` keeps it in the ledger's objects, `branch` also pushes it, `pull_request` also asks to merge it.

    `remote` is the git remote that is pushed to (the job's repository if it is not given), `base` the branch to merge
    into. `forge`, `api` (base URL) and `repository` (OWNER/NAME) follow from the remote where they can. In `branch`,
    `title` and `text` stand `{batch}`, `{job}` and `{key}`, in the last two also `{issue}`, its first line as `{line}`,
    and `{tree}`. `comment_on` is the number of an issue that is told of the request. Credentials are never in here.
    """

    to: Literal["patch", "branch", "pull_request"] = "patch"
    remote: Line | None = None
    branch: Line = "patchyard/{batch}/{job}-{key}"
    base: Line = "main"
    forge: ForgeName | None = None
    api: Line | None = None
    repository: Line | None = None
    title: Line = "{line}"
    text: str | None = Field(default=None, max_length=50_000)
    draft: bool = False
    labels: tuple[Line, ...] = Field(default=(), max_length=50)
    comment_on: int | None = Field(default=None, ge=1)
    author: Line = "patchyard <patchyard@localhost>"
