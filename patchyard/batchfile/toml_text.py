"""TOML with lines: the standard parser for the values, then a walk over the text, well-formed by then, for lines."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from ledger.errors import BadInput
from patchyard.batchfile.located import KeyPath, located

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*(\.?)""")
_STRING = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\]|\\.)*"|'[^']*\'''',
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")
_AT_LINE = re.compile(r"(.*) \(at line (\d+), column (\d+)\)$", re.DOTALL)


def parse_toml(text: str, name: str) -> Any:
    """The document in `text` with its lines. `name` stands in errors (BadInput)."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _AT_LINE.match(str(error))
        last = len(text.splitlines()) or 1
        what, line = (match[1], match[2]) if match else (str(error), last)
        raise BadInput(f"not well-formed TOML: {what}", where=f"{name}:{line}", remedy="correct it there") from None
    except RecursionError:
        raise BadInput("nested too deeply", where=name, remedy="flatten it") from None
    return located(value, _Walk(text.replace("\r\n", "\n")).lines)


class _Walk:
    """One pass over a well-formed document; `lines` says where each table, key and item stands."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted = 1, 0
        self._tables: dict[KeyPath, int] = {}
        self.lines: dict[KeyPath, int] = {(): 1}
        base: KeyPath = ()
        while self._skip_blank():
            base = self._statement(base)

    def _here(self) -> int:
        """The line of the current place."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:  # cannot be: the standard parser has accepted the text
            raise BadInput("not well-formed TOML", where=f"line {self._here()}", remedy="correct it there")
        self._at = match.end()
        return match

    def _skip_blank(self) -> bool:
        """Go to what comes next; False at the end."""
        self._take(_BLANK)
        return self._at < len(self._text)

    def _keys(self) -> list[str]:
        keys = []
        while True:
            match = self._take(_KEY)
            token = match[1]
            keys.append(_unquoted(token))
            if not match[2]:
                return keys

    def _statement(self, base: KeyPath) -> KeyPath:
        """A header or an assignment; gives the table that the next assignments belong to."""
        if self._text[self._at] != "[":
            self._assignment(base)
            return base
        line = self._here()
        double = self._text.startswith("[[", self._at)
        self._at += 2 if double else 1
        path: KeyPath = ()
        keys = self._keys()
        for position, key in enumerate(keys):
            path = (*path, key)
            self.lines.setdefault(path, line)
            if double and position == len(keys) - 1:
                self._tables[path] = self._tables.get(path, -1) + 1
            if path in self._tables:
                path = (*path, self._tables[path])
                self.lines.setdefault(path, line)
        self._at += 2 if double else 1
        return path

    def _assignment(self, base: KeyPath) -> None:
        line, path = self._here(), base
        for key in self._keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self._at += 1  # the equals sign
        while self._text[self._at] in " \t":
            self._at += 1
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        start = self._text[self._at]
        if start == "[":
            self._items(path)
        elif start == "{":
            self._inline_table(path)
        elif start in "\"'":
            self._take(_STRING)
        else:
            self._take(_SCALAR)

    def _items(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while self._skip_blank() and self._text[self._at] != "]":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self.lines[(*path, index)] = self._here()
            self._value((*path, index))
            index += 1
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._skip_blank() and self._text[self._at] != "}":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._assignment(path)
        self._at += 1


def _unquoted(token: str) -> str:
    if token[0] == "'":
        return token[1:-1]
    if token[0] != '"':
        return token
    try:
        return str(json.loads(token))
    except ValueError:  # TOML has an escape that JSON lacks; the key's line is then its table's
        return token[1:-1]
