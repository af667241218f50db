"""How two versions of one record differ, in words: each field by its path, with both values, as far as they fit a line.

A batch that is submitted again with other jobs is refused, and whoever submitted it has to find what is other: in a
budget one number, in a long text one word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MOST_FIELDS = 5
MOST_CHARS = 60
_BEFORE = 20
_ABSENT = object()


def change_words(old: dict[str, Any], new: dict[str, Any]) -> str:
    """`budget.steps 40 → 20, issue "…a word" → "…another"`: at most MOST_FIELDS, each value in MOST_CHARS."""
    found = list(_differing(old, new, ""))
    shown = [f"{path} {' → '.join(_shown(one, other))}" for path, one, other in found[:MOST_FIELDS]]
    if len(found) > MOST_FIELDS:
        shown.append(f"{len(found) - MOST_FIELDS} more")
    return ", ".join(shown)


def _differing(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The innermost values that differ; in lists of one length those at one place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            below = f"{path}.{name}" if path else name
            yield from _differing(old.get(name, _ABSENT), new.get(name, _ABSENT), below)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differing(one, other, f"{path}[{index}]")
    elif old != new:
        yield path, old, new


def _shown(old: Any, new: Any) -> tuple[str, str]:
    """Both values as JSON; of long ones the part where they begin to differ."""
    texts = [
        "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False, default=str) for value in (old, new)
    ]
    pairs = enumerate(zip(*texts, strict=False))
    first = next((index for index, (one, other) in pairs if one != other), min(map(len, texts)))
    start = max(0, first - _BEFORE) if max(map(len, texts)) > MOST_CHARS else 0
    cut = [text[start : start + MOST_CHARS] for text in texts]
    before = "…" if start else ""
    return tuple(  # type: ignore[return-value]
        before + part + ("…" if start + MOST_CHARS < len(text) else "") for part, text in zip(cut, texts, strict=True)
    )
