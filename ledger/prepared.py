"""The statements of the hot path, prepared once a connection and sent by libpq's own calls.

A step is two transactions of a few statements each. Sent through a cursor they cost the worker several times what they
cost the database, most of it while no other thread may run. So claim and completion come here: the statement is
prepared at its first use on a connection, a call is one round trip that lets other threads run, parameters and results
are text. Everything else uses the driver's cursors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from ledger.statements import statement

_PARAMETER = re.compile(r"%\((\w+)\)s")
_ESCAPED = re.compile(r'["\\]')
_Load = Callable[[str], Any]
_FROM_TEXT: dict[int, _Load] = {
    16: lambda text: text == "t",
    20: int,
    23: int,
    1184: datetime.fromisoformat,
    3802: json.loads,
}
"""By type: bool, bigint, integer, timestamptz, jsonb. Other types stay text."""


class PreparedConnection(psycopg.Connection[DictRow]):
    """A connection that remembers which statements are prepared on it.

    To be opened with `prepare_threshold=None`: when psycopg drops what it has prepared by itself, after a rollback for
    one, it drops everything on the connection.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        """As psycopg's."""
        super().__init__(*given, **options)
        self._named: set[str] = set()
        self._columns: dict[str, list[tuple[str, _Load]]] = {}

    def call(self, name: str, /, **arguments: Any) -> list[DictRow]:
        """Runs one named statement within a transaction and returns its rows. Raises the driver's errors."""
        text, parameters = _numbered(name)
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._checked(self.pgconn.exec_(b"BEGIN"))
        if name not in self._named:
            self._checked(self.pgconn.prepare(name.encode(), text))
            self._named.add(name)
        values: list[Any] = [_as_text(arguments[parameter]) for parameter in parameters]
        result = self._checked(self.pgconn.exec_prepared(name.encode(), values))
        columns = self._columns.get(name)
        if columns is None:
            columns = self._columns[name] = _columns(result)
        return [
            {
                column: None if (value := result.get_value(row, number)) is None else load(value.decode())
                for number, (column, load) in enumerate(columns)
            }
            for row in range(result.ntuples)
        ]

    def commit(self) -> None:
        """As psycopg's, in one call."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            self._checked(self.pgconn.exec_(b"COMMIT"))

    def _checked(self, result: PGresult) -> PGresult:
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return result
        error = error_from_result(result)
        if error.sqlstate is None and self.pgconn.status == ConnStatus.BAD:  # it is libpq that speaks, not the server
            raise psycopg.OperationalError(str(error))
        raise error


def _columns(result: PGresult) -> list[tuple[str, _Load]]:
    return [
        ((result.fname(number) or b"").decode(), _FROM_TEXT.get(result.ftype(number), str))
        for number in range(result.nfields)
    ]


@cache
def _numbered(name: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement with $1, $2 … in place of its parameters, and their names in this order."""
    parameters: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in parameters:
            parameters.append(found[1])
        return f"${parameters.index(found[1]) + 1}"

    return _PARAMETER.sub(number, statement(name)).replace("%%", "%").encode(), tuple(parameters)


def _as_text(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Jsonb):
        return json.dumps(value.obj).encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int | float):
        return repr(value).encode()
    return b"{" + b",".join(b'"' + _text(_ESCAPED.sub(r"\\\g<0>", item)) + b'"' for item in value) + b"}"


def _text(value: str) -> bytes:
    if "\0" in value:
        raise psycopg.DataError("PostgreSQL's text can't have NUL characters")
    return value.encode()
