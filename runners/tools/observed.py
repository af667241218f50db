"""What a tool gives back, and how much of it: every observation is bounded, and says so when it was cut.

Observations are kept as JSON in PostgreSQL and shown to a model, so text from files and commands is made fit for both
here: bytes that are no UTF-8 and NUL characters are replaced, names of files keep their bytes in an escaped form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolLimits:
    """The bounds of observations and of what a tool reads to make one."""

    text_bytes: int = 64 * 1024
    file_bytes: int = 4 * 1024 * 1024
    search_bytes: int = 64 * 1024 * 1024
    search_file_bytes: int = 1024 * 1024
    search_seconds: float = 5.0
    fragment_chars: int = 200
    diff_bytes: int = 64 * 1024
    diff_files: int = 200
    output_tail_bytes: int = 16 * 1024
    failures: int = 20
    message_chars: int = 300


@dataclass(frozen=True)
class Observed:
    """The data of an observation; `tree` is the new tree, if the tool made one."""

    data: dict[str, Any]
    truncated: bool = False
    tree: str | None = None


def shown_text(data: bytes) -> str:
    """`data` as text: what is no UTF-8, and NUL, becomes U+FFFD."""
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def shown_path(path: str) -> str:
    """A path of a tree as text that is valid UTF-8; bytes that were none are escaped as \\udcXX."""
    return path.encode("utf-8", "backslashreplace").decode().replace("\0", "\ufffd")


def tail_of(data: bytes, limit_bytes: int) -> str:
    """The end of `data`, from the start of a line if one starts in it, as text."""
    if len(data) <= limit_bytes:
        return shown_text(data)
    tail = data[-limit_bytes:]
    cut = tail.find(b"\n") + 1
    return shown_text(tail[cut:] if 0 < cut < len(tail) else tail)
