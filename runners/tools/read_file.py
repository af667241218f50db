"""read_file: the text of a file, whole or by lines, with the version that an edit has to name.

The text is given as it stands, carriage returns included, so that what a model copies from it is what is there.
"""

from __future__ import annotations

from policy.errors import ToolFailure
from policy.tools import ReadFile
from runners.tools.files import text_at
from runners.tools.observed import Observed, ToolLimits, shown_path, shown_text
from runners.tools.textlines import TextLines
from runners.workspace.store import Store


def read_file(store: Store, tree: str, args: ReadFile, limits: ToolLimits) -> Observed:
    """`text` of the lines `lines`, of `total_lines`. When it was cut, `next_line` is where to go on.

    Raises ToolFailure EPATH, ENOENT, EBINARY, ETOOBIG, or EINVAL for lines that the file does not have.
    """
    entry, data = text_at(store, tree, args.path, limits)
    lines = TextLines(data)
    first, last = args.lines or (1, max(lines.count, 1))
    if args.lines and first > lines.count:
        raise ToolFailure("EINVAL", f"lines: {shown_path(args.path)} has {lines.count} lines")
    last = min(last, lines.count)
    shown_to = last
    if shown_to > first and lines.start(shown_to + 1) - lines.start(first) > limits.text_bytes:
        shown_to = _last_within(lines, first, limits.text_bytes)
    text = data[lines.start(first) : lines.start(shown_to + 1)] if lines.count else b""
    truncated = shown_to < last or len(text) > limits.text_bytes
    return Observed(
        {
            "path": shown_path(args.path),
            "version": entry.id,
            "lines": [first, shown_to] if lines.count else None,
            "total_lines": lines.count,
            "text": shown_text(text[: limits.text_bytes]),
            "truncated": truncated,
            "line_endings": lines.endings,
            "final_newline": lines.final_newline,
            **({"next_line": shown_to + 1} if shown_to < last else {}),
        },
        truncated,
    )


def _last_within(lines: TextLines, first: int, limit_bytes: int) -> int:
    """The last line up to which the text from `first` has at most `limit_bytes`, but at least `first`."""
    shown_to = first
    while lines.start(shown_to + 2) - lines.start(first) <= limit_bytes:
        shown_to += 1
    return shown_to
