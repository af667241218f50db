"""A batch file as text and settings, before any of its jobs is looked at.

Jobs come one at a time (`BatchFile.entries`), so that a JSON-lines file of any length takes the memory of one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.errors import BadInput
from ledger.records.job import BatchSpec
from patchyard.batchfile.instances import as_job, is_instance
from patchyard.batchfile.json_text import parse_json, parse_json_line
from patchyard.batchfile.located import LinedDict, LinedList, line_of
from patchyard.batchfile.problems import Problems, nearest, quoted
from patchyard.batchfile.stated import StatedBatch, StatedJob, check
from patchyard.batchfile.toml_text import parse_toml
from patchyard.batchfile.yaml_text import parse_yaml
from patchyard.printable import printable
from runners.workspace.location import redacted

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
LINES_SUFFIXES = (".jsonl", ".ndjson")
_SETTABLE = ("name", "weight", "max_parallel", "defaults")


@dataclass(frozen=True)
class Entry:
    """One job as its file has it, without defaults; `foreign` if it was made of another project's instance."""

    stated: LinedDict
    file: str
    foreign: bool = False
    test_patch: str | None = None

    def where(self, line: int) -> str:
        return f"{self.file}:{line}"


@dataclass(frozen=True)
class BatchFile:
    """A batch file whose top has been checked. `folder` is where relative paths start."""

    file: str
    folder: Path
    spec: BatchSpec
    defaults: LinedDict
    sets: tuple[str, ...]
    jobs: LinedList | Path = field(repr=False)

    def default_where(self, line: int) -> str:
        """The place of a line of the defaults; a negative line stands for a `--set`."""
        return _where(self.file, line, self.sets)

    def entries(self, problems: Problems) -> Iterator[Entry]:
        """Each job in the order of the file. What is no job at all is noted in `problems` and left out."""
        for value, file, line in self._values(problems):
            entry = self._entry(value, file, line, problems)
            if entry is not None:
                yield entry

    def image_names(self) -> set[str]:
        """What the batch and its jobs call their images, as far as its jobs can be read."""
        stated = [self.defaults, *(entry.stated for entry in self.entries(Problems()))]
        return {image for image in (found.get("image") for found in stated) if isinstance(image, str)}

    def _values(self, problems: Problems) -> Iterator[tuple[Any, str, int]]:
        if isinstance(self.jobs, LinedList):
            for item, line in zip(self.jobs, self.jobs.lines, strict=True):
                yield item, self.file, line
            return
        shown = _beside(self.file, self.jobs)
        if self.jobs.suffix.lower() in LINES_SUFFIXES:
            for value, line in _json_lines(self.jobs, shown, problems):
                yield value, shown, line
            return
        listed = _parse(self.jobs, shown)
        if not isinstance(listed, LinedList):
            raise BadInput("it is not a list of jobs", where=f"{shown}:1", remedy="write one list")
        for item, line in zip(listed, listed.lines, strict=True):
            yield item, shown, line

    def _entry(self, value: Any, file: str, line: int, problems: Problems) -> Entry | None:
        if not isinstance(value, LinedDict):
            what = "a job must be a mapping"
            problems.add(BadInput(what, where=f"{file}:{line}", remedy="write it as name: value pairs"))
            return None
        if not is_instance(value):
            return Entry(value, file)
        try:
            job, test_patch = as_job(value, self.defaults, lambda number: f"{file}:{number}")
        except BadInput as problem:
            problems.add(problem)
            return None
        return Entry(job, file, foreign=True, test_patch=test_patch)


def read_batch(path: Path, *, name: str | None = None, sets: Sequence[str] = ()) -> BatchFile:
    """The batch file at `path`, its top and its defaults checked.

    `name` overrides the batch's name, `sets` are `key=value` texts that override `name`, `weight`, `max_parallel` or
    anything under `defaults`. A file that is a list of jobs, or JSON lines, is a batch named after the file. Raises
    BadInput, or BadBatch for several mistakes.
    """
    shown = printable(str(path))
    top: Any
    if path.suffix.lower() in LINES_SUFFIXES:
        _readable(path, shown)
        top = LinedDict(1)
        top["jobs"] = path.name
    else:
        top = _parse(path, shown)
    if isinstance(top, LinedList):
        jobs, top = top, LinedDict(1)
        top["jobs"] = jobs
    if not isinstance(top, LinedDict):
        what = "the file is empty" if top is None else "a batch file must be a mapping"
        raise BadInput(what, where=f"{shown}:1", remedy="write name, defaults and jobs")
    for index, text in enumerate(sets):
        _apply_set(top, text, -1 - index)
    said = tuple(f"--set {redacted(printable(text))}" for text in sets)
    if name is not None:
        said = (*said, f"--name {printable(name)}")
        top["name"], top.lines["name"] = name, -len(said)
    top.setdefault("name", path.stem)
    if top.get("defaults") is None:
        top["defaults"] = LinedDict(top.line)
    return _checked(path, shown, top, said)


def _checked(path: Path, shown: str, top: LinedDict, sets: tuple[str, ...]) -> BatchFile:
    problems = Problems()

    def where(loc: Sequence[str | int]) -> str:
        return _where(shown, line_of(top, loc, top.line)[0], sets)

    batch = check(StatedBatch, top, where, problems)
    defaults = top["defaults"]
    if isinstance(defaults, LinedDict):
        check(StatedJob, defaults, lambda loc: where(("defaults", *loc)), problems, partial_under="defaults")
        if "id" in defaults:
            problems.add(
                BadInput("an id in the defaults", where=where(("defaults", "id")), remedy="give each job its own")
            )
    jobs = _jobs(top, path, where, problems)
    problems.raise_any()
    assert batch is not None  # noqa: S101  (no problem was found)
    assert jobs is not None  # noqa: S101
    spec = BatchSpec(name=batch.name, weight=batch.weight, max_parallel=batch.max_parallel)
    return BatchFile(shown, path.parent.resolve(), spec, defaults, sets, jobs)


def _jobs(top: LinedDict, path: Path, where: Any, problems: Problems) -> LinedList | Path | None:
    """The list of jobs, or the file that has them."""
    jobs = top.get("jobs")
    if isinstance(jobs, str) and jobs:
        file = path.parent.resolve() / jobs
        try:
            _readable(file, _beside(str(path), file), said=where(("jobs",)))
        except BadInput as problem:
            problems.add(problem)
            return None
        return file
    if isinstance(jobs, LinedList) and jobs:
        return jobs
    what = "jobs is missing" if "jobs" not in top else "there are no jobs"
    if jobs is not None and not isinstance(jobs, (str, list)):
        what = "jobs must be a list, or the path of a file with jobs"
    problems.add(BadInput(what, where=where(("jobs",)), remedy="list at least one job under jobs"))
    return None


def _where(file: str, line: int, sets: Sequence[str]) -> str:
    return f"{file}:{line}" if line >= 0 else sets[-1 - line]


def _beside(file: str, other: Path) -> str:
    """`other` as it is shown: by the way that `file` was named where they are in one folder."""
    return str(Path(file).parent / other.name) if Path(file).parent.resolve() == other.parent else str(other)


def _readable(path: Path, shown: str, said: str | None = None) -> None:
    """Raises BadInput if the file cannot be opened; `said` is the place that names it."""
    try:
        with path.open("rb"):
            return
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        if said is None:
            raise BadInput(reason, where=shown, remedy="give the path of a batch file") from None
        raise BadInput(f"{quoted(shown)}: {reason}", where=said, remedy="give the path of a file of jobs") from None


def _parse(path: Path, shown: str) -> Any:
    _readable(path, shown)
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        remedy = "put its jobs into a JSON-lines file"
        raise BadInput(f"the file is larger than {MAX_FILE_BYTES} bytes", where=shown, remedy=remedy)
    text = _decoded(data, shown, 1)
    parsers = {".json": parse_json, ".toml": parse_toml, ".yaml": parse_yaml, ".yml": parse_yaml}
    parser = parsers.get(path.suffix.lower())
    if parser is None:
        what = f"unknown kind of file {quoted(path.suffix or path.name)}"
        raise BadInput(what, where=shown, remedy=f"use one of {', '.join((*parsers, *LINES_SUFFIXES))}")
    return parser(text, shown)


def _decoded(data: bytes, shown: str, first_line: int) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise BadInput("not UTF-8 text", where=f"{shown}:{line}", remedy="save it as UTF-8") from None


def _json_lines(path: Path, shown: str, problems: Problems) -> Iterator[tuple[Any, int]]:
    """The value and the number of each line that is not blank; a line that is no JSON is noted and left out."""
    with path.open("rb") as file:
        number = 0
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not data.strip():
                continue
            try:
                if len(data) > MAX_LINE_BYTES:
                    what = f"a line of more than {MAX_LINE_BYTES} bytes"
                    raise BadInput(what, where=f"{shown}:{number}", remedy="shorten it")
                yield parse_json_line(_decoded(data, shown, number), shown, number), number
            except BadInput as problem:
                problems.add(problem)
                if problems.full or len(data) > MAX_LINE_BYTES:
                    return


def _apply_set(top: LinedDict, text: str, line: int) -> None:
    """Puts one `key=value` into the document, copying what it changes: anchors share mappings."""
    key, equals, value_text = text.partition("=")
    where, parts = f"--set {redacted(printable(text))}", key.split(".")
    if not equals or not all(parts):
        raise BadInput("it is not key=value", where=where, remedy="write it as defaults.budget.steps=10")
    if parts[0] not in _SETTABLE:
        raise BadInput(f"unknown key {quoted(parts[0])}", where=where, remedy=nearest(parts[0], _SETTABLE))
    value = parse_yaml(value_text, where) if value_text else ""
    target = top
    for part in parts[:-1]:
        below = target.get(part)
        if below is not None and not isinstance(below, LinedDict):
            raise BadInput(f"{quoted(part)} is not a mapping", where=where, remedy="set it as a whole")
        copy = LinedDict(line)
        if below is not None:
            copy.update(below)
            copy.line, copy.lines = below.line, dict(below.lines)
        target[part] = copy
        target.lines.setdefault(part, line)
        target = copy
    target[parts[-1]] = value
    target.lines[parts[-1]] = line
    _relocate(value, line)


def _relocate(value: object, line: int) -> None:
    """Everything of a value given by `--set` stands on that setting's line."""
    if isinstance(value, LinedDict):
        value.line, value.lines = line, dict.fromkeys(value, line)
        for item in value.values():
            _relocate(item, line)
    elif isinstance(value, LinedList):
        value.line, value.lines = line, [line] * len(value)
        for item in value:
            _relocate(item, line)
