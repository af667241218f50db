"""The schema is the same whichever way it came to be: at once, version by version, twice, or out of a backup."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from yoyo import get_backend, read_migrations

from ledger.afterwards import audit_job
from ledger.connect import Database
from ledger.events import broken_links
from ledger.migrate import migrate
from ledger.reads import find_job
from ledger.records.step import Claim, Completion
from ledger.steps import complete_step
from patchyard.local.account import server_account
from patchyard.local.programs import postgres_programs
from tests.fixtures.database import database_url

_numbers = itertools.count(1)
_CATALOG = """
SELECT 'column', table_name || '.' || column_name, concat_ws(' ', data_type, udt_name, is_nullable, column_default)
FROM information_schema.columns WHERE table_schema = 'ledger'
UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'ledger'::regnamespace
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'ledger'
UNION ALL SELECT 'function', oid::regprocedure::text, pg_get_functiondef(oid) || coalesce(proacl::text, '')
FROM pg_proc WHERE pronamespace = 'ledger'::regnamespace AND prokind = 'f'
UNION ALL SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid)
FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'ledger.%'
UNION ALL SELECT 'right', c.oid::regclass::text,
    (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(relacl) a)
FROM pg_class c WHERE relnamespace = 'ledger'::regnamespace AND relkind IN ('r', 'v')
ORDER BY 1, 2, 3
"""


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[Callable[[], str]]:
    """Makes databases with nothing in them."""
    made = []
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def make() -> str:
            made.append(f"schema_{next(_numbers)}")
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(made[-1])))
            return database_url(postgres_url, made[-1])

        yield make
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def catalog(url: str) -> list[tuple[str, str, str]]:
    """All that makes the schema: kind, name, definition."""
    with psycopg.connect(url) as connection:
        return connection.execute(_CATALOG.encode()).fetchall()


def test_version_by_version_it_is_the_same_as_at_once(empty_url: Callable[[], str], ledger_url: str) -> None:
    url = empty_url()
    folder = str(resources.files("ledger") / "migrations")
    backend = get_backend(urlunsplit(urlsplit(url)._replace(scheme="postgresql+psycopg")))
    versions = 0
    for migration in backend.to_apply(read_migrations(folder)):
        backend.apply_one(migration)
        versions += 1
    backend.connection.close()
    assert versions >= 7
    migrate(url)
    found = catalog(url)
    assert len(found) > 100
    assert found == catalog(ledger_url)


def test_migrating_again_changes_nothing(ledger_url: str) -> None:
    before = catalog(ledger_url)
    migrate(ledger_url)
    assert catalog(ledger_url) == before


def test_a_backup_has_everything(
    database: Database, claimed: Callable[..., Claim], ledger_url: str, empty_url: Callable[[], str], tmp_path: Path
) -> None:
    claim = claimed()
    complete_step(database, claim, Completion(result={}, end="replay_exhausted"))
    programs = postgres_programs(server_account())
    dump, url = tmp_path / "ledger.dump", empty_url()
    parts = ("--format=custom", "--schema=ledger", "--schema=public")
    subprocess.run([programs / "pg_dump", *parts, f"--file={dump}", ledger_url], check=True)
    said = subprocess.run(
        [programs / "pg_restore", f"--dbname={url}", dump], capture_output=True, text=True, check=False
    ).stderr
    assert [
        line for line in said.splitlines() if "error:" in line and 'schema "public" already exists' not in line
    ] == []
    assert catalog(url) == catalog(ledger_url)
    migrate(url)
    with Database(url, name="test") as restored:
        job = find_job(restored, "batch-1/job-1")
        assert (job.state, job.reason) == ("failed", "replay_exhausted")
        assert audit_job(restored, job.id) == []
        assert broken_links(restored, job.id) == []
