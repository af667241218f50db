"""What a job says of its publication, made complete and judged at submission, so that no worker guesses."""

from __future__ import annotations

import re

from ledger.errors import BadInput
from ledger.records.publish import ForgeName, Publish
from ledger.records.source import SourceRef
from runners.effects.branch import branch_name
from runners.effects.commit import Signature
from runners.effects.remote import Remote, checked_api, parse_remote

_KNOWN: dict[str, ForgeName] = {"github.com": "github", "gitlab.com": "gitlab", "codeberg.org": "gitea"}
_APIS: dict[ForgeName, str] = {"github": "/api/v3", "gitlab": "/api/v4", "gitea": "/api/v1"}
_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+\Z")
_AUTHOR = re.compile(r"(?P<name>[^<>]+?)\s*<(?P<email>[^<>\s]+@[^<>\s]+)>\Z")
_NO_KEY = "0" * 64


def complete_publish(publish: Publish, source: SourceRef, *, batch: str, job: str, where: str = "") -> Publish:
    """The job's `publish` with remote, forge, API and repository filled in. BadInput for what cannot work.

    `where` is the place in the batch file, for the message.
    """
    if publish.to == "patch":
        return publish
    if source.kind != "git":
        raise BadInput(
            f"a job on a {source.kind} has no history to push onto",
            where=where,
            remedy="use `publish: {to: patch}`, or a git repository as `repo`",
        )
    remote = parse_remote(publish.remote or source.location, where=f"{where}.remote" if where else "")
    branch_name(publish.branch, batch=batch, job=job, key=_NO_KEY, where=f"{where}.branch" if where else "")
    signature_of(publish.author, where=f"{where}.author" if where else "")
    known = publish.model_copy(update={"remote": remote.url})
    return known if publish.to == "branch" else _with_forge(known, remote, where)


def _with_forge(publish: Publish, remote: Remote, where: str) -> Publish:
    branch_name(publish.base, batch="", job="", key=_NO_KEY, where=f"{where}.base" if where else "")
    forge = publish.forge or _KNOWN.get(remote.host)
    if forge is None:
        raise BadInput(
            f"what kind of forge is at {remote.host or remote.url} is not known",
            where=where,
            remedy="say `forge: github`, `gitlab` or `gitea`",
        )
    api = publish.api or _api_of(forge, remote)
    if api is None:
        raise BadInput(f"{remote.url} tells no address of an API", where=where, remedy="give `api: https://HOST/PATH`")
    repository = publish.repository or remote.repository
    if not _REPOSITORY.match(repository):
        raise BadInput(f"{repository} is no OWNER/NAME", where=where, remedy="give `repository: OWNER/NAME`")
    checked = checked_api(api, where=f"{where}.api" if where else "")
    return publish.model_copy(update={"forge": forge, "api": checked, "repository": repository})


def _api_of(forge: ForgeName, remote: Remote) -> str | None:
    if remote.host == "github.com":
        return "https://api.github.com"
    if remote.scheme == "file":
        return None
    # ssh has a port of its own, which is not the API's.
    host = remote.host.rsplit(":", 1)[0] if remote.scheme == "ssh" and not remote.host.endswith("]") else remote.host
    return f"{'http' if remote.scheme == 'http' else 'https'}://{host}{_APIS[forge]}"


def signature_of(author: str, *, where: str = "") -> Signature:
    """`NAME <ADDRESS>` as a signature. BadInput."""
    found = _AUTHOR.match(author)
    if found is None:
        raise BadInput(f"{author!r} is no author", where=where, remedy='write it as "NAME <ADDRESS>"')
    return Signature(found["name"], found["email"])
