"""Plain values that remember the lines they stand on.

A mistake in a batch file is worth nothing without its line. Every reader (YAML, TOML, JSON) gives the same two
containers; to everybody else they are an ordinary dict and list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KeyPath = tuple[str | int, ...]


class LinedDict(dict[str, Any]):
    """A mapping that starts on `line`; `lines` says on which line each key stands (a key may be missing there)."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class LinedList(list[Any]):
    """A list that starts on `line`; `lines` says on which line each item starts."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def line_of(value: object, path: Sequence[str | int], line: int) -> tuple[int, int]:
    """The line of `path` in `value`, which starts on `line`, and how many parts of the path were found.

    Where the path leads out of the value (a field that is missing), it is the line of the last part found.
    """
    found = 0
    for part in path:
        if isinstance(value, LinedDict) and isinstance(part, str) and part in value:
            line = value.lines.get(part, line)
            value = value[part]
        elif isinstance(value, LinedList) and isinstance(part, int) and 0 <= part < len(value):
            line = value.lines[part] if part < len(value.lines) else line
            value = value[part]
        else:
            break
        found += 1
    return line, found


def located(value: object, lines: Mapping[KeyPath, int], path: KeyPath = (), line: int = 1) -> Any:
    """`value` with its dicts and lists replaced by lined ones; `lines` maps paths to lines, gaps take the parent's."""
    line = lines.get(path, line)
    if isinstance(value, dict):
        mapping = LinedDict(line)
        for key, item in value.items():
            below = (*path, key)
            mapping.lines[key] = lines.get(below, line)
            mapping[key] = located(item, lines, below, line)
        return mapping
    if isinstance(value, list):
        sequence = LinedList(line)
        for index, item in enumerate(value):
            below = (*path, index)
            sequence.lines.append(lines.get(below, line))
            sequence.append(located(item, lines, below, line))
        return sequence
    return value
