"""Addresses that carry a credential are refused: what a batch file says is written into the ledger and shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from ledger.errors import BadInput
from runners.workspace.location import redacted

_TELLTALE = re.compile(
    r"(?:^|[_-])(?:token|secret|password|passwd|credential|signature|sig|auth|key|apikey)$", re.IGNORECASE
)
_WHY = "carries a credential, which everybody who sees the ledger would have"
_FOR_PUBLISHING = "PATCHYARD_CREDENTIALS is for publishing"


def source_credential(address: str, field: str) -> BadInput | None:
    """What is wrong, without repeating it, if the address of a source has a password, a token or a signature."""
    if not carries_credential(address):
        return None
    instead = "git takes it from ~/.netrc, or use ssh with a key"
    if "#sha256=" in address:
        instead = "download the archive and name the file"
    return BadInput(f"{field} {redacted(address)} {_WHY}", remedy=f"leave it out: {instead}; {_FOR_PUBLISHING}")


def published_credential(address: str | None, field: str) -> BadInput | None:
    """As source_credential, for an address that is published to."""
    if address is None or not carries_credential(address):
        return None
    remedy = "leave it out: it belongs in the file of PATCHYARD_CREDENTIALS"
    return BadInput(f"{field} {redacted(address)} {_WHY}", remedy=remedy)


def carries_credential(address: str) -> bool:
    """Whether a URL has a secret in it. A user alone is one, except of ssh, where it is a name that all use."""
    try:
        parts = urlsplit(address)
        user, password = parts.username, parts.password
    except ValueError:
        return "@" in address  # no URL that anybody could use; what stands before the @ is shown to nobody
    if not parts.netloc:
        return False
    if password is not None or (user is not None and parts.scheme != "ssh"):
        return True
    return any(_TELLTALE.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True))
