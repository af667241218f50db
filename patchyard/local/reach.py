"""Whether a database and a broker answer, said in one line: which, why not, and what to do."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ledger.connect import check
from ledger.errors import LedgerUnavailable, Unfit
from ledger.migrate import migrate
from patchyard.settings import masked_url

_TIMEOUT_SECONDS = 5.0


def require_database(url: str) -> None:
    """Returns when the database takes a connection, else raises `Unfit`. Nothing is changed in it."""
    try:
        check(url)
    except LedgerUnavailable as error:
        raise _no_database(url, error) from None


def require_ledger(url: str) -> None:
    """Returns when the database answers and has this version's schema, else raises `Unfit`."""
    try:
        migrate(url)
    except LedgerUnavailable as error:
        raise _no_database(url, error) from None


def _no_database(url: str, error: LedgerUnavailable) -> Unfit:
    reason = " ".join(error.message.split()).rstrip(".")
    return Unfit(f"{masked_url(url)}: {reason}", remedy="start it, or correct PATCHYARD_DATABASE_URL")


def require_broker(url: str) -> None:
    """Returns when the broker answers, else raises `Unfit`."""
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            client.ping()
        finally:
            client.close()
    except (redis.RedisError, ValueError, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise Unfit(
            f"{masked_url(url)}: the broker does not answer: {reason}",
            remedy="start it, or correct PATCHYARD_BROKER_URL",
        ) from None
