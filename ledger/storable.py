"""What untrusted text must lose before PostgreSQL's jsonb takes it: NUL characters and lone surrogates.

Both come from tool output and file names. They become U+FFFD, so that a hostile byte can't make a completion fail.
"""

from __future__ import annotations

import re
from typing import Any

from psycopg.types.json import Jsonb

_REFUSED = re.compile("[\x00\ud800-\udfff]")


def storable(value: Any) -> Jsonb:
    """`value` (plain JSON types) as a jsonb parameter that the database accepts."""
    return Jsonb(_cleaned(value))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _REFUSED.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
