"""JSON with lines: the standard parser for the values, a walk over the tokens for the lines and repeated keys."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ledger.errors import BadInput
from patchyard.batchfile.located import KeyPath, LinedDict, located
from patchyard.batchfile.problems import quoted

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,\n]|[^\s\[\]{}:,"]+')


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{quoted(key)} is there twice")
            seen.add(key)
    return mapping


def _load(text: str, name: str, first_line: int, hook: Any = None) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        where = f"{name}:{first_line + error.lineno - 1}"
        what = f"not well-formed JSON: {error.msg} at column {error.colno}"
        raise BadInput(what, where=where, remedy="correct it there") from None
    except RecursionError:
        raise BadInput("nested too deeply", where=f"{name}:{first_line}", remedy="flatten it") from None
    except ValueError as error:
        where = f"{name}:{first_line}"
        raise BadInput(f"not well-formed JSON: {error}", where=where, remedy="correct it there") from None


def parse_json(text: str, name: str) -> Any:
    """The value in `text` with its lines. `name` stands in errors (BadInput)."""
    value = _load(text, name, 1)
    return located(value, _lines(text, name))


def parse_json_line(text: str, name: str, line: int) -> Any:
    """The value on one line of a JSON-lines file; its objects all stand on `line`."""
    value = _load(text.rstrip("\r\n"), name, line, _no_repeats)
    if isinstance(value, dict):
        lined = LinedDict(line)
        lined.update(value)
        return lined
    return value


def _lines(text: str, name: str) -> dict[KeyPath, int]:
    """Where each key and item of the well-formed `text` stands; a key that occurs twice is an error."""
    lines: dict[KeyPath, int] = {}
    stack: list[tuple[KeyPath, int]] = []  # the open containers: path, and index of the next item (-1 in an object)
    line, key = 1, None
    for piece in _TOKEN.findall(text):
        if piece == "\n":
            line += 1
        elif piece in "]}":
            stack.pop()
        elif piece == ",":
            path, index = stack[-1]
            stack[-1] = (path, index + 1) if index >= 0 else (path, index)
        elif piece == ":":
            continue
        elif stack and stack[-1][1] < 0 and key is None:
            key = json.loads(piece)
            path = (*stack[-1][0], key)
            if path in lines:
                what = f"{quoted(key)} is here a second time, first on line {lines[path]}"
                raise BadInput(what, where=f"{name}:{line}", remedy="remove one of the two")
            lines[path] = line
        else:
            below = () if not stack else (*stack[-1][0], key if key is not None else stack[-1][1])
            key = None
            lines.setdefault(below, line)
            if piece in "[{":
                stack.append((below, 0 if piece == "[" else -1))
    return lines
