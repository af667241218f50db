"""How a service says that it is ready for work, so that `up` returns neither too early nor too late."""

from __future__ import annotations

import os
from pathlib import Path

READY_FILE = "PATCHYARD_READY_FILE"


def tell_ready() -> None:
    """Called by a service once, when it takes work; does nothing where no supervisor waits for it."""
    if path := os.environ.get(READY_FILE):
        Path(path).touch()
