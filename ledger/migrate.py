"""Brings a database to this version's schema: numbered migrations once each, then the engine's functions anew.

Safe to run from several processes at once (an advisory lock), safe to repeat, and safe while old workers run as long as
a migration only adds. A process that dies in a migration leaves nothing: each one is a transaction.
"""

from __future__ import annotations

from importlib import resources
from urllib.parse import urlsplit, urlunsplit

import psycopg
from yoyo import get_backend, read_migrations

from ledger.connect import CONNECT_SECONDS, translated_errors
from ledger.statements import sql_file

ENGINE_FILES = ("engine.sql", "afterwards.sql", "probes.sql", "roles.sql", "forges.sql")
_LOCK = "SELECT pg_advisory_lock(4711, 0)"


def migrate(url: str) -> None:
    """Migrates the database at `url`. LedgerUnavailable if it does not answer."""
    with (
        translated_errors(),
        psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS) as guard,
    ):
        guard.execute(_LOCK)
        _apply_numbered(url)
        with guard.transaction():
            for name in ENGINE_FILES:
                guard.execute(sql_file(name).encode())


def _apply_numbered(url: str) -> None:
    parts = urlsplit(url)
    backend = get_backend(urlunsplit(parts._replace(scheme="postgresql+psycopg")))
    try:
        backend.break_lock()  # the advisory lock is ours: a row left here is of a process that died
        wanted = read_migrations(str(resources.files("ledger") / "migrations"))
        backend.apply_migrations(backend.to_apply(wanted))
    finally:
        backend.connection.close()
