"""One builder of a mirror at a time, among all threads and processes of a host.

An advisory lock on a file (`flock`): each holder opens the file anew, so that threads exclude each other as processes
do, and the kernel lets go when a holder dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.workspace.errors import RepoUnavailable

_POLL_SECONDS = 0.05


@contextmanager
def locked(path: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock file `path`. Raises `RepoUnavailable` when others hold it for `timeout_seconds`."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + timeout_seconds
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RepoUnavailable(f"{path.name} is held by another worker for too long") from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)
