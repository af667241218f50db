"""search: the lines that match a pattern, in time that no pattern can stretch.

Both the pattern and the text come from people we do not trust, and Python's `re` can take for ever on a short line.
So the pattern goes to the regex engine inside pydantic-core, which is the one that ripgrep uses: it runs in time
linear in the text, has no backreferences and no look-around, and comes with what we depend on anyway. What is left to
bound is the size of the pattern, since counted repetitions multiply it, and the length of one line, because a match
can't be interrupted; between lines the clock is looked at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from policy.errors import ToolFailure
from policy.paths import matches
from policy.tools import Search
from runners.tools.files import check_pattern, is_binary
from runners.tools.observed import Observed, ToolLimits, shown_path
from runners.workspace.store import Store

MAX_PATTERN_WEIGHT = 20_000
LINE_CHARS = 4_000
"""A line is searched up to here; what is longer is data rather than text."""

Matcher = Callable[[str], bool]


def search(store: Store, tree: str, args: Search, limits: ToolLimits) -> Observed:
    """`matches` with path, line number and a fragment of the line; `truncated` says that there may be more.

    Raises ToolFailure EINVAL for a pattern or glob that is none, ETIMEDOUT when time was up before anything was found.
    """
    check_pattern(args.glob)
    matcher = literal(args.pattern, args.ignore_case) if args.fixed else regex(args.pattern, args.ignore_case)
    scan = _Scan(store, tree, args, limits)
    found: list[dict[str, Any]] = []
    used_bytes = 0
    for path, number, line in scan.lines(matcher):
        if len(found) == args.max_results or used_bytes > limits.text_bytes:
            scan.stopped = "max_results" if len(found) == args.max_results else "text_bytes"
            break
        found.append({"path": shown_path(path), "line": number, "text": _fragment(line, matcher, limits)})
        used_bytes += len(path) + len(found[-1]["text"])
    if scan.stopped == "time" and not found:
        raise ToolFailure("ETIMEDOUT", f"nothing was found in {limits.search_seconds:g} s", "Narrow the glob.")
    data: dict[str, Any] = {"matches": found, "files_searched": scan.files, "truncated": scan.stopped is not None}
    if scan.stopped:
        data["stopped_by"] = scan.stopped
    if scan.skipped:
        data["files_too_big"] = scan.skipped
    return Observed(data, scan.stopped is not None)


class _Scan:
    """One pass over the text files of a tree, within the limits. `stopped` names the limit that ended it."""

    def __init__(self, store: Store, tree: str, args: Search, limits: ToolLimits) -> None:
        self._store, self._tree, self._args, self._limits = store, tree, args, limits
        self._until = time.monotonic() + limits.search_seconds
        self._bytes_left = limits.search_bytes
        self.files = self.skipped = 0
        self.stopped: str | None = None

    def lines(self, matcher: Matcher) -> Iterator[tuple[str, int, str]]:
        for path, text in self._texts():
            for number, line in enumerate(text.split("\n"), 1):
                if matcher(line[:LINE_CHARS].removesuffix("\r")):
                    yield path, number, line
                if self._late():
                    return

    def _texts(self) -> Iterator[tuple[str, str]]:
        for entry in self._store.walk(self._tree):
            if entry.kind != "file" or (self._args.glob != "**" and not matches((self._args.glob,), entry.path)):
                continue
            if self._late():
                return
            size = self._store.blob_size(entry.id)
            if size > self._limits.search_file_bytes:
                self.skipped += 1
                continue
            self._bytes_left -= size
            if self._bytes_left < 0:
                self.stopped = "search_bytes"
                return
            data = self._store.blob(entry.id)
            if data and not is_binary(data):
                self.files += 1
                yield entry.path, data.decode("utf-8", "replace").removesuffix("\n")

    def _late(self) -> bool:
        if time.monotonic() > self._until:
            self.stopped = "time"
        return self.stopped is not None


def literal(text: str, ignore_case: bool) -> Matcher:
    """Finds `text` as it stands."""
    if not ignore_case:
        return lambda line: text in line
    folded = text.casefold()
    return lambda line: folded in line.casefold()


def regex(pattern: str, ignore_case: bool) -> Matcher:
    """Finds what the regular expression `pattern` matches. Raises ToolFailure EINVAL."""
    if _weight(pattern) > MAX_PATTERN_WEIGHT:
        raise ToolFailure("EINVAL", "pattern: its counted repetitions multiply to too much", "Use smaller counts.")
    try:
        schema = core_schema.str_schema(pattern=f"(?i){pattern}" if ignore_case else pattern, regex_engine="rust-regex")
        return SchemaValidator(schema).isinstance_python
    except SchemaError as wrong:
        why = str(wrong).splitlines()[-1].strip().removeprefix("error: ")
        raise ToolFailure("EINVAL", f"pattern: {why}", "Use ripgrep's syntax, or fixed: true for plain text.") from None


def _weight(pattern: str) -> int:
    """An upper bound of the pattern's size with its counted repetitions written out, too high rather than too low.

    A count behind a group or another count multiplies everything, since groups nest; one behind a single character or
    class adds. With the flag `x` anything may stand between a group and its count, so every count multiplies.
    """
    verbose = re.search(r"\(\?[a-zA-Z-]*x", pattern) is not None
    atoms, factor = len(pattern), 1
    for count in re.finditer(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}", pattern):
        most = max(int(count[1] or 0), int(count[2] or 0), 1)
        if verbose or pattern[count.start() - 1] in ")}":
            factor *= most
        else:
            atoms += most
    return atoms * factor


def _fragment(line: str, matcher: Matcher, limits: ToolLimits) -> str:
    """The line, or the part of it around the first match."""
    line = line.removesuffix("\r")
    size = limits.fragment_chars
    if len(line) <= size:
        return line
    low, high = 0, min(len(line), LINE_CHARS)
    while low < high:  # the shortest start of the line that matches ends where the first match ends
        middle = (low + high) // 2
        low, high = (low, middle) if matcher(line[:middle]) else (middle + 1, high)
    start = max(0, min(low - size // 2, len(line) - size))
    return line[start : start + size]
