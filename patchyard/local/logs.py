"""Logs of the stack: one file a service, kept small by copying and cutting.

Services write to their file themselves, through a descriptor opened for appending. So they need nobody to read a pipe:
they go on when the supervisor dies, and a file that is cut under them grows again from its start.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LIMIT_BYTES = 8 * 1024 * 1024
KEPT = 3


def rotate(log: Path, limit_bytes: int = LIMIT_BYTES, kept: int = KEPT) -> bool:
    """Move `log` aside if it has outgrown the limit; `kept` old ones stay as log.1 (the newest), log.2 …

    Lines written between the copy and the cut are lost: a few, once in many megabytes.
    """
    try:
        if log.stat().st_size <= limit_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
    return True


def last_lines(log: Path, count: int = 5, limit_bytes: int = 16_384) -> list[str]:
    """The last lines of `log` that are not empty; none when there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
