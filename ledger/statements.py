"""Named SQL statements from the `.sql` files beside this module: no SQL is written in Python."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import LiteralString, cast

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def _statements() -> dict[str, LiteralString]:
    found: dict[str, LiteralString] = {}
    for file in ("queries.sql", "submission.sql", "reads.sql", "forge_queries.sql", "probe_queries.sql"):
        parts = _NAME.split(sql_file(file))[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file}: two statements are named {name}")
            found[name] = cast(LiteralString, text.strip())
    return found


def sql_file(name: str) -> str:
    """The text of one file of `ledger/sql`."""
    return (resources.files("ledger") / "sql" / name).read_text(encoding="utf-8")


def statement(name: str) -> LiteralString:
    """The statement of that name; a name that is not there is a programming error (KeyError)."""
    return _statements()[name]
