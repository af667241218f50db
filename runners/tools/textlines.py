"""Lines of a file, in bytes: where each starts, how they end, and whether the last one ends at all.

A line ends with a newline; a carriage return before it belongs to the ending. Nothing else ends a line.
"""

from __future__ import annotations

import re
from typing import Literal

Endings = Literal["none", "lf", "crlf", "mixed"]


class TextLines:
    """The lines of `data`, numbered from 1."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
        self.final_newline = data.endswith(b"\n")
        if self.final_newline or not data:
            self._starts.pop()

    @property
    def count(self) -> int:
        """How many lines there are; a last line without a newline counts, an empty file has none."""
        return len(self._starts)

    def start(self, line: int) -> int:
        """The offset in bytes at which `line` starts; for a line beyond the last it is the end of the file."""
        return self._starts[line - 1] if line <= self.count else len(self.data)

    def line_at(self, offset: int) -> int:
        """The line that the byte at `offset` is in."""
        return self.data.count(b"\n", 0, offset) + 1

    @property
    def endings(self) -> Endings:
        """How the lines end."""
        all_endings, with_return = self.data.count(b"\n"), self.data.count(b"\r\n")
        if not all_endings:
            return "none"
        if not with_return:
            return "lf"
        return "crlf" if with_return == all_endings else "mixed"
