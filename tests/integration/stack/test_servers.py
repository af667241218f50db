"""The embedded servers do what the services count on."""

from __future__ import annotations

import psycopg
import pytest
import redis

from patchyard.local.postgres import PostgresServer
from patchyard.local.valkey import ValkeyServer


def test_postgres_takes_only_the_password_it_was_given(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url()) as connection:
        row = connection.execute("SELECT current_setting('server_version_num')::int / 10000").fetchone()
        assert row == (18,)
    wrong = postgres_server.url().replace(postgres_server.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_postgres_sorts_and_folds_the_same_everywhere(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT lower('ÄÖ'), 'a' > 'B', current_setting('TimeZone')").fetchone()
        assert row == ("äö", True, "UTC")


def test_valkey_takes_only_the_password_it_was_given(valkey_server: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey_server.url()) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    wrong = valkey_server.url().replace(valkey_server.password, "wrong")
    with redis.Redis.from_url(wrong) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
