"""The connection pool, and the one place where the database driver's errors become the ledger's own.

A transaction here either commits or raises. When the connection breaks during a commit nobody knows the outcome:
`LedgerUnavailable` is raised all the same, and writers that may be repeated (`complete_step`, `give_back`, `intend`)
ask the ledger on their next call what happened.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool, PoolTimeout

from ledger.errors import BadInput, BudgetExhausted, IsolationUnverified, LeaseLost, LedgerUnavailable, Permanent
from ledger.prepared import PreparedConnection
from ledger.records.budget import Amounts
from ledger.statements import statement

Connection = psycopg.Connection[DictRow]

CONNECT_SECONDS = 10


class HeadMoved(Permanent):
    """The agent's head tree is not the one that this result was made from."""


class ActionConflict(Permanent):
    """This action id stands for another payload already."""


class Database:
    """A pool of connections to one PostgreSQL. Open it in the process that uses it, after any fork."""

    def __init__(
        self, url: str, *, name: str = "patchyard", pool_max: int = 4, silence_seconds: float | None = None
    ) -> None:
        """`url` in libpq's form. Nothing is connected before the first transaction.

        A transaction in which we say nothing for `silence_seconds` is undone by the server: the locks of a process that
        was stopped, or whose host is gone, must not keep others from its work. None: it may take its time.
        """
        self.url, self._name, self._pool_max = url, name, pool_max
        self._silence_seconds = silence_seconds
        self._pool = self._new_pool()

    def _new_pool(self) -> ConnectionPool[PreparedConnection]:
        limits = {}
        if self._silence_seconds is not None:
            limits["options"] = limit_of_silence(self.url, "idle_in_transaction_session_timeout", self._silence_seconds)
        return ConnectionPool(
            self.url,
            kwargs={
                "application_name": self._name,
                "row_factory": dict_row,
                "connect_timeout": CONNECT_SECONDS,
                "keepalives_idle": 30,
                "tcp_user_timeout": 30_000,
                "prepare_threshold": None,
                **limits,
            },
            connection_class=PreparedConnection,
            min_size=0,
            max_size=self._pool_max,
            timeout=CONNECT_SECONDS,
            reconnect_timeout=1,
            check=check_quietly,
            open=False,
            name=self._name,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection. The database can't be used afterwards."""
        self._pool.close()

    def reconnect(self) -> None:
        """Lets every connection go; the next transaction opens a new one (and sees new settings of the database)."""
        self._pool.close()
        self._pool = self._new_pool()

    @contextmanager
    def transaction(self) -> Iterator[PreparedConnection]:
        """One transaction on a connection of the pool; errors of the driver come out as the ledger's own."""
        with translated_errors():
            if self._pool.closed:
                self._pool.open(wait=False)
            with self._pool.connection() as connection:
                yield connection

    def run(self, name: str, /, **arguments: Any) -> list[DictRow]:
        """Runs one named statement in a transaction of its own and returns its rows."""
        with self.transaction() as connection:
            return run(connection, name, **arguments)


def check(url: str) -> None:
    """Returns when the database takes a connection. LedgerUnavailable with the reason; BadInput for the URL."""
    with translated_errors():
        psycopg.connect(url, connect_timeout=CONNECT_SECONDS).close()


def check_quietly(connection: Connection) -> None:
    """Raises OperationalError if a connection that was idle was closed in the meantime, without asking the server.

    An idle server says nothing until it says goodbye: only where there is something to read is it asked.
    """
    waiting = select.poll()
    waiting.register(connection.pgconn.socket, select.POLLIN)
    if waiting.poll(0):
        ConnectionPool.check_connection(connection)


def limit_of_silence(url: str, setting: str, seconds: float) -> str:
    """libpq's `options` for sessions that the server ends by `setting` after so many seconds, beside those of `url`."""
    with translated_errors():
        given = psycopg.conninfo.conninfo_to_dict(url).get("options") or ""
    return f"{given} -c {setting}={max(1, round(seconds * 1000))}".strip()


def run(connection: Connection, name: str, /, **arguments: Any) -> list[DictRow]:
    """Runs one named statement on an open transaction and returns its rows."""
    cursor = connection.execute(statement(name), arguments)
    return cursor.fetchall() if cursor.description else []


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns the driver's errors into the ledger's."""
    try:
        yield
    except PoolTimeout as error:
        raise LedgerUnavailable("the database does not answer") from error
    except psycopg.errors.UniqueViolation as error:
        raise BadInput(error.diag.message_detail or str(error)) from error
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
        raise LedgerUnavailable(f"the database asks to try again: {error.diag.message_primary}") from error
    except psycopg.errors.IdleInTransactionSessionTimeout as error:
        raise LedgerUnavailable("the database undid a transaction in which nothing was said for too long") from error
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:  # libpq did not understand the URL
            raise BadInput(str(error).splitlines()[0], where="the database's URL") from error
        own = _own_error(error)
        if own is None:
            raise
        raise own from error
    except psycopg.OperationalError as error:
        raise LedgerUnavailable(f"the database does not answer: {str(error).splitlines()[0]}") from error
    except psycopg.Error as error:
        own = _own_error(error)
        if own is None:
            raise
        raise own from error


def _own_error(error: psycopg.Error) -> Permanent | None:
    match error.sqlstate:
        case "PY001":
            return LeaseLost()
        case "PY002":
            return BudgetExhausted(error.diag.message_detail or "")
        case "PY003":
            return HeadMoved()
        case "PY004":
            return ActionConflict()
        case "PY005":
            return IsolationUnverified()
        case "42501":
            return BadInput(
                f"this login of the database may not do that ({error.diag.message_primary})",
                remedy="use one that has the role of its kind of service",
            )
        case "42P01" | "3F000" | "42883":
            return BadInput(
                f"the database has no ledger of this version ({error.diag.message_primary})",
                remedy="run `patchyard up`, which migrates it",
            )
    return None


def amounts_literal(amounts: Amounts) -> str:
    """The amounts in the text form of the composite type ledger.amounts."""
    return f"({','.join(str(value) for value in amounts.as_tuple())})"


def parse_amounts(text: str | None) -> Amounts:
    """The inverse of amounts_literal; null and null fields (sums over no rows) are zero."""
    if text is None:
        return Amounts()
    return Amounts.of(tuple(int(value or 0) for value in text.strip("()").split(",")))


def json_or_none(value: object | None) -> Jsonb | None:
    """A JSON parameter; None stays SQL's null."""
    return None if value is None else Jsonb(value)
