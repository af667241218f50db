"""A remote's address, taken apart and judged before git or an HTTP client sees it, and its words, made safe to show.

Refused are addresses that carry a credential (it would end in logs and in the ledger), that could be taken for an
option, that name a transport which runs a program, or that would send a credential in the clear.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from ledger.errors import BadInput

Scheme = Literal["file", "ssh", "https", "http"]
_REMEDY = "use https://HOST/OWNER/NAME.git, ssh://git@HOST/OWNER/NAME.git, file:///PATH or an absolute path"
_SCP_LIKE = re.compile(r"(?:(?P<user>[A-Za-z0-9._-]+)@)?(?P<host>[A-Za-z0-9.-]+):(?P<path>[^:].*)\Z")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\Z|\[[0-9A-Fa-f:.]+\]\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_DEFAULT_PORTS = {"ssh": 22, "https": 443, "http": 80}
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
MAX_SAID_CHARS = 300


@dataclass(frozen=True, slots=True)
class Remote:
    """A git remote. `host` has its port unless that is the scheme's own, and is "" for a file."""

    scheme: Scheme
    url: str
    host: str
    path: str
    user: str | None = None

    @property
    def repository(self) -> str:
        """`OWNER/NAME` as a forge names it."""
        return self.path.strip("/").removesuffix(".git")

    def __str__(self) -> str:
        return self.url


def parse_remote(text: str, *, where: str = "") -> Remote:
    """The remote named by a URL, a path or scp's form. Raises BadInput."""
    if not text or not text.isprintable() or " " in text or text.startswith("-"):
        raise BadInput(f"{text!r} is no git remote", where=where, remedy=_REMEDY)
    if text.startswith("/"):
        return Remote("file", text, "", text)
    if "://" in text:
        return _from_url(text, where)
    scp = _SCP_LIKE.match(text)
    if scp is None or "::" in text:
        raise BadInput(f"{text} is no git remote", where=where, remedy=_REMEDY)
    path = scp["path"]
    user = scp["user"] or "git"
    return Remote("ssh", f"ssh://{user}@{scp['host']}/{path.lstrip('/')}", scp["host"].lower(), path, user)


def _from_url(text: str, where: str) -> Remote:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadInput(f"{text} is no git remote", where=where, remedy=_REMEDY) from None
    shown = safe_to_show(text)
    scheme = parts.scheme
    if scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return Remote("file", text, "", parts.path)
    if scheme not in ("ssh", "https", "http") or not _HOST.match(_bracketed(parts.hostname or "")):
        raise BadInput(f"{shown} is no git remote that can be pushed to", where=where, remedy=_REMEDY)
    if parts.password is not None or (parts.username is not None and scheme != "ssh"):
        raise BadInput(
            f"{shown} carries a credential", where=where, remedy="credentials belong to the publish worker's own file"
        )
    if parts.query or parts.fragment or not parts.path.strip("/"):
        raise BadInput(f"{shown} names no repository", where=where, remedy=_REMEDY)
    if parts.username is not None and not _USER.match(parts.username):
        raise BadInput(f"{shown} is no git remote", where=where, remedy=_REMEDY)
    host = _bracketed((parts.hostname or "").lower())
    if port is not None and port != _DEFAULT_PORTS[scheme]:
        host = f"{host}:{port}"
    if scheme == "http" and not is_loopback(host):
        raise BadInput(f"{shown} is not encrypted", where=where, remedy="use https")
    user = (parts.username or "git") if scheme == "ssh" else None
    login = f"{user}@" if user else ""
    narrowed: Scheme = "ssh" if scheme == "ssh" else "https" if scheme == "https" else "http"
    return Remote(narrowed, f"{scheme}://{login}{host}{parts.path}", host, parts.path, user)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a host (with or without port) is this machine: only there an unencrypted connection is taken."""
    name = re.sub(r":\d+\Z", "", host).strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def checked_api(url: str, *, where: str = "") -> str:
    """The base URL of an API without a slash at its end. BadInput if it is none, or would send a token in the clear."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host, parts = "", urlsplit("")
    if parts.scheme not in ("https", "http") or not host or parts.query or parts.fragment or parts.username is not None:
        raise BadInput(
            f"{safe_to_show(url)} is no address of a forge's API", where=where, remedy="use https://HOST/PATH"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise BadInput(f"{safe_to_show(url)} is not encrypted", where=where, remedy="use https")
    return url.rstrip("/")


def safe_to_show(text: str, secrets: Iterable[str] = ()) -> str:
    """A remote's words as one bounded line, without control characters, credentials and the secrets given."""
    for secret in secrets:
        if secret:
            for form in (secret, base64.b64encode(secret.encode()).decode()):
                text = text.replace(form, "***")
    text = _USERINFO.sub("***@", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_SAID_CHARS else text[: MAX_SAID_CHARS - 1] + "…"
