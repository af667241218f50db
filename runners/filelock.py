"""File locks that say "in use" and "mine", among all threads and processes of a host.

Advisory locks (`flock`): each holder opens the file anew, so that threads exclude each other as processes do, and the
kernel lets go when a holder dies. A lock file may be removed by who holds it alone: whoever waited for it finds out,
and takes the new one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.errors import Temporary

_POLL_SECONDS = 0.05


class Busy(Temporary):
    """Others hold this."""


@contextmanager
def hold(path: Path, *, shared: bool = False, timeout_seconds: float = 0.0) -> Iterator[int]:
    """Hold the lock file `path`, made if need be, with others (`shared`) or alone; its descriptor.

    Raises `Busy` when others hold it for `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(path, handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, deadline)
            if _is_named(path, handle):
                yield handle
                return
        finally:
            os.close(handle)


def _take(path: Path, handle: int, mode: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Busy(f"{path.name} is held by others") from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _is_named(path: Path, handle: int) -> bool:
    """Whether the open file still is the one of this name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
