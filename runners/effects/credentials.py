"""Which credential belongs to which host: decided by the operator of the publish worker, never by a batch file.

A batch names remotes; a token goes only to the host it was stored for, so that no batch can send it elsewhere. The file
(TOML) has one table a host, named as in the remote's URL, with its port if it is not the usual one:

    ["github.com"]
    token = "…"                      # for the API, and for git over https
    user = "x-access-token"          # the name that goes with it over https; this is the default

    ["git.example.org"]
    ssh_key = "/run/secrets/deploy"  # a private key without passphrase
    known_hosts = "/run/secrets/known_hosts"

The file belongs to the publish worker alone; one that others may read is refused.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ledger.errors import BadInput

_FIELDS = {"token": str, "user": str, "ssh_key": str, "known_hosts": str}
# A forge whose API has a host of its own.
_SAME_AS = {"api.github.com": "github.com"}


@dataclass(frozen=True, slots=True)
class Credential:
    """What one host accepts. The secrets do not show in its repr."""

    token: str = field(default="", repr=False)
    user: str = "x-access-token"
    ssh_key: Path | None = None
    known_hosts: Path | None = None


class Credentials:
    """The credentials of one publish worker, by host."""

    def __init__(self, by_host: Mapping[str, Credential] | None = None) -> None:
        self._by_host = {host.lower(): credential for host, credential in (by_host or {}).items()}

    def of(self, host: str) -> Credential | None:
        """The credential for a host, with its port if it is not the usual one, or None."""
        return self._by_host.get(_SAME_AS.get(host.lower(), host.lower()))

    @classmethod
    def read(cls, path: Path) -> Credentials:
        """The credentials in a file. BadInput if it is not there, malformed, or readable by others."""
        remedy = 'a table a host, such as ["github.com"] with token = "…" below it'
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot be read ({type(error).__name__})", where=str(path), remedy=remedy) from None
        if stat.S_IMODE(mode) & 0o007:
            raise BadInput("others may read this file of credentials", where=str(path), remedy=f"chmod 600 {path}")
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            # The message names a line and never quotes the value.
            raise BadInput(f"is not TOML ({error})", where=str(path), remedy=remedy) from None
        return cls({host: _credential(path, host, table) for host, table in tables.items()})


def _credential(path: Path, host: str, table: object) -> Credential:
    where = f"{path}: {host}"
    if not isinstance(table, dict):
        raise BadInput("is no table of a host", where=where, remedy=f'write ["{host}"] and the fields below it')
    for name, value in table.items():
        if name not in _FIELDS:
            raise BadInput(f"unknown field {name}", where=where, remedy=f"one of {', '.join(_FIELDS)}")
        if not isinstance(value, str) or not value or not value.isprintable():
            raise BadInput(f"{name} is no line of text", where=where, remedy="give a string in quotes")
    return Credential(
        token=table.get("token", ""),
        user=table.get("user", "x-access-token"),
        ssh_key=Path(table["ssh_key"]) if "ssh_key" in table else None,
        known_hosts=Path(table["known_hosts"]) if "known_hosts" in table else None,
    )
