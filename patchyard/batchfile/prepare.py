"""From stated jobs to jobs that any worker can do: everything looked up, everything checked, nothing written.

A mistake in one job does not hide the next one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ledger.errors import BadInput
from ledger.records.job import BatchSpec
from patchyard.batchfile.located import line_of
from patchyard.batchfile.lookups import Finder, FoundImage, Lookups
from patchyard.batchfile.problems import Problems, quoted
from patchyard.batchfile.read import BatchFile, Entry
from patchyard.batchfile.resolve import Resolution
from patchyard.batchfile.spool import Spool
from patchyard.batchfile.stated import StatedJob, check, merge
from policy.network import NO_NETWORK, Ceiling

_NOT_OURS = "repos is for instances of SWE-bench and SWE-agent alone"


@dataclass
class Prepared:
    """A batch ready for submission, remarks on its repositories, and the images that it needs. Close it when done."""

    spec: BatchSpec
    spool: Spool
    remarks: tuple[str, ...]
    images: tuple[FoundImage, ...]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.spool.__exit__(kind, value, tb)


def prepare(batch: BatchFile, finder: Finder, ceiling: Ceiling = NO_NETWORK) -> Prepared:
    """Checks and looks up every job of the batch. `ceiling` is what its jobs may ask for of a network.

    Raises BadInput, or BadBatch for several mistakes.
    """
    spool, problems = Spool(), Problems()
    lookups = Lookups(finder, spool, batch.folder)
    try:
        preparation = _Preparation(batch, lookups, spool, problems, ceiling)
        for entry in batch.entries(problems):
            preparation.take(entry)
            if problems.full:
                break
        if not problems and not spool.jobs:
            where = batch.default_where(1) if isinstance(batch.jobs, list) else f"{batch.jobs}:1"
            problems.add(BadInput("there are no jobs", where=where, remedy="write at least one"))
        preparation.check_repos()
        problems.raise_any()
    except BaseException:
        spool.__exit__(None, None, None)
        raise
    return Prepared(batch.spec, spool, tuple(lookups.remarks), tuple(lookups.images.values()))


class _Preparation:
    """The jobs of one batch, one at a time, in turn."""

    def __init__(self, batch: BatchFile, lookups: Lookups, spool: Spool, problems: Problems, ceiling: Ceiling) -> None:
        self._ceiling = ceiling
        self._batch, self._lookups, self._spool, self._problems = batch, lookups, spool, problems
        self._ids: dict[str, str] = {}
        self._foreign = False

    def take(self, entry: Entry) -> None:
        """Checks one job and spools it if nothing is wrong with it."""
        self._note_id(entry)
        self._foreign |= entry.foreign
        if not entry.foreign and "repos" in entry.stated:
            where = entry.where(line_of(entry.stated, ("repos",), entry.stated.line)[0])
            self._problems.add(BadInput(_NOT_OURS, where=where, remedy="say with repo where this job's code is"))
            return
        merged = merge(self._batch.defaults, entry.stated)
        how = merged.get("acceptance")
        if entry.foreign and isinstance(how, dict) and "fail_to_pass" not in how:
            merged.pop("acceptance")  # the defaults say how to run hidden tests, and this instance has none
        job = check(
            StatedJob,
            merged,
            lambda loc: self._own_place(entry, loc),
            self._problems,
            foreign=entry.foreign,
        )
        if job is None:
            return
        spec = Resolution(self._batch, entry, job, self._lookups, self._problems, self._ceiling).spec()
        if spec is not None:
            self._spool.add(spec)

    def check_repos(self) -> None:
        """Where the repositories of instances are is of no use to a batch that has none."""
        defaults = self._batch.defaults
        if "repos" in defaults and not self._foreign and not self._problems:
            where = self._batch.default_where(line_of(defaults, ("repos",), defaults.line)[0])
            self._problems.add(BadInput(f"{_NOT_OURS}, and no job here is one", where=where, remedy="remove it"))

    def _note_id(self, entry: Entry) -> None:
        job_id = entry.stated.get("id")
        if not isinstance(job_id, str):
            return
        place = entry.where(line_of(entry.stated, ("id",), entry.stated.line)[0])
        first = self._ids.setdefault(job_id, place)
        if first is not place:
            what = f"job id {quoted(job_id)} is taken by {first}"
            self._problems.add(BadInput(what, where=place, remedy="give each job an id of its own"))

    def _own_place(self, entry: Entry, loc: Sequence[str | int]) -> str | None:
        """Where a mistake stands; None if it is in the defaults, whose mistakes were reported before any job's."""
        line, found = line_of(entry.stated, loc, entry.stated.line)
        return entry.where(line) if found or not self._in_defaults(loc) else None

    def _in_defaults(self, loc: Sequence[str | int]) -> bool:
        return line_of(self._batch.defaults, loc, 0)[1] == len(loc)
