"""Checked jobs on disk, between the last check and the first row.

Everything about a batch is checked before the ledger is touched, network and all, and what was checked is what gets
submitted: the spool holds it in the meantime, so that neither the client's memory nor the ledger's transaction grows
with the time that takes, and a file that changes in between changes nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from ledger.records.base import sha256_hex
from ledger.records.job import JobSpec
from ledger.records.step import NewObject

_MEMORY_BYTES = 1024 * 1024


class Spool:
    """A temporary file of objects and jobs, each object before the first job that names it, and once."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115  (closed by __exit__)
        self._objects: set[str] = set()
        self.jobs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def put_object(self, kind: str, data: bytes) -> str:
        """Keeps the bytes and gives their SHA-256."""
        sha256 = sha256_hex(data)
        if sha256 not in self._objects:
            self._objects.add(sha256)
            self._write(kind, data)
        return sha256

    def add(self, job: JobSpec) -> None:
        """Keeps one job."""
        self._write("", job.model_dump_json().encode())
        self.jobs += 1

    def _write(self, kind: str, data: bytes) -> None:
        self._file.write(b"%s %d\n" % (kind.encode(), len(data)))
        self._file.write(data)

    def items(self) -> Iterator[NewObject | JobSpec]:
        """All that was kept, in order."""
        self._file.seek(0)
        while head := self._file.readline():
            kind, _, size = head.decode().rpartition(" ")
            data = self._file.read(int(size))
            yield NewObject(kind=kind, data=data) if kind else JobSpec.model_validate_json(data)
