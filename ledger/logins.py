"""Logins for services: each kind of service connects as a login of its own that has the role of its kind."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from ledger.connect import CONNECT_SECONDS, translated_errors
from ledger.statements import statement

ServiceKind = Literal["scheduler", "decide", "sandbox", "publish", "api", "exporter"]


def ensure_login(url: str, kind: ServiceKind, password: str) -> str:
    """Makes the login of a kind of service, with this password, and returns the URL with which it connects.

    `url` is that of a user who may create roles, on a migrated ledger. LedgerUnavailable. Safe to repeat.
    """
    login = f"patchyard_{kind}_login"
    with (
        translated_errors(),
        psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection,
        connection.transaction(),
    ):
        connection.execute(statement("lock_logins"))
        known = connection.execute(statement("login_named"), {"login": login}).fetchall()
        names = {"login": sql.Identifier(login), "role": sql.Identifier(f"patchyard_{kind}")}
        verb = sql.SQL(statement("change_login" if known else "create_login"))
        connection.execute(verb.format(**names, password=sql.Literal(password)))
        connection.execute(sql.SQL(statement("grant_role")).format(**names))
    return login_url(url, kind, password)


def login_url(url: str, kind: ServiceKind, password: str) -> str:
    """The URL with which a kind of service connects to the server of `url`."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"patchyard_{kind}_login:{quote(password, safe='')}@{place}"))
