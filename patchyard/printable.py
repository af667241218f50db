"""Text of strangers as it may reach a terminal.

Issue texts, file names, tool output and model output are written by whoever wants to be shown as somebody else: escape
sequences, carriage returns and bidirectional overrides can repaint a screen or forge a line of ours. Here they lose
that power and stay readable.
"""

from __future__ import annotations


def printable(text: str, limit: int | None = None) -> str:
    """`text` on one line: what is not printable is escaped, and more than `limit` characters end in an ellipsis."""
    if limit is not None and len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> list[str]:
    """The lines of `text`, each printable; tabs are spaces, and a carriage return is not a way back."""
    return [printable(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n")]


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
