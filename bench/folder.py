"""The temporary folder of one measurement, which is gone at its end, also when the end is a SIGTERM."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def measurement_folder() -> Iterator[Path]:
    """A folder that the containers' user can read: the repository is mounted for mini-swe-agent from there."""
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="patchyard-bench-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(_TERMINATED)
