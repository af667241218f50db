"""One builder of a mirror at a time, among all threads and processes of a host; see `runners.filelock`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.filelock import Busy, hold
from runners.workspace.errors import RepoUnavailable


@contextmanager
def locked(path: Path, timeout_seconds: float, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock file `path`, alone or `shared`. Raises `RepoUnavailable` when others hold it that long."""
    holding = hold(path, shared=shared, timeout_seconds=timeout_seconds)
    try:
        handle = holding.__enter__()
    except Busy:
        raise RepoUnavailable(f"{path.name} is held by another worker for too long") from None
    try:
        yield handle
    finally:
        holding.__exit__(None, None, None)
