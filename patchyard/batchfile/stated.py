"""A batch and its jobs as a file states them, and pydantic's complaints in words that name field, line and remedy.

This is the form before anything is looked up: paths are still paths and the image is still a name.
`ledger.records.job` has the form after.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import PydanticCustomError

from ledger.errors import BadInput
from ledger.records.base import Record
from ledger.records.budget import Budget
from ledger.records.job import Argv, JobKey, Network, SandboxLimits, Tests
from ledger.records.publish import Publish
from patchyard.batchfile.problems import Problems, nearest, quoted

MAX_ISSUE_CHARS = 1_000_000
_ID_RULE = "use 1 to 100 letters, digits, '.', '_' and '-'"

Stated = TypeVar("Stated", bound=Record)
WhereOf = Callable[[Sequence[str | int]], str | None]
"""From the path of a field to FILE:LINE; None for a place whose mistakes have been reported already."""


class StatedAcceptance(Record):
    """Hidden tests: `files` is a folder beside the batch file; what is missing is as in `tests`."""

    files: str | None = None
    command: Argv | None = None
    report: str | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, le=86_400)
    fail_to_pass: tuple[str, ...] = Field(min_length=1)
    pass_to_pass: tuple[str, ...] = ()
    red_on_base: bool = True


class StatedJob(Record):
    """A job with the batch's defaults merged in."""

    id: JobKey
    repo: str = Field(min_length=1)
    repos: str | None = None
    base: str = Field(default="HEAD", min_length=1)
    issue: str = Field(min_length=1, max_length=MAX_ISSUE_CHARS)
    image: str = Field(min_length=1)
    model: str = Field(min_length=1)
    model_options: dict[str, Any] = {}
    strategy: Any = "single"
    budget: Budget = Budget()
    tests: Tests | None = None
    acceptance: StatedAcceptance | None = None
    limits: SandboxLimits = SandboxLimits()
    network: Network | None = None
    writable: tuple[str, ...] = ("**",)
    protected: tuple[str, ...] = ()
    approvals: Literal["deny", "ask", "allow"] = "deny"
    publish: Publish = Publish()
    priority: int = Field(default=0, ge=-100, le=100)


def _no_id_and_no_option(name: str) -> str:
    """On the command line digits are an id, and what begins with '-' is an option."""
    if name.isdecimal() or name.startswith("-"):
        raise PydanticCustomError("taken_for_another", "begin it with a letter, or put one into it")
    return name


class StatedBatch(Record):
    """The top of a batch file."""

    name: Annotated[JobKey, AfterValidator(_no_id_and_no_option)]
    weight: float = Field(default=1.0, gt=0, le=1_000)
    max_parallel: int | None = Field(default=None, ge=1, le=100_000)
    defaults: dict[str, Any] = {}
    jobs: Any = None


def merge(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` over `defaults`: mappings key by key, everything else replaced. Neither is changed."""
    merged = {**defaults, **own}
    for key, value in own.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            merged[key] = merge(default, value)
    return merged


def check(
    model: type[Stated],
    value: object,
    where_of: WhereOf,
    problems: Problems,
    *,
    partial_under: str = "",
    foreign: bool = False,
) -> Stated | None:
    """`value` as `model`, or None with its mistakes noted in `problems`.

    With `partial_under` fields may be missing, and names are shown below that one. `foreign` says that it was made of
    another project's instance, whose file nobody wants to edit: what such files never have is told once.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for complaint in error.errors(include_url=False):
            if partial_under and complaint["type"] == "missing":
                continue
            where = where_of(complaint["loc"])
            if where is None:
                continue
            what, remedy = _in_words(model, complaint, partial_under)
            field = str(complaint["loc"][0]) if complaint["loc"] else ""
            if foreign and complaint["type"] == "missing" and field in FOR_ALL:
                problems.add_once(what, BadInput(what, where=where, remedy=for_all(field)))
            else:
                problems.add(BadInput(what, where=where, remedy=remedy))
        return None


FOR_ALL = {
    "image": "defaults.image=sandbox-python",
    "model": "defaults.model=replay:replays/{id}.jsonl",
    "tests": "'defaults.tests.command=[python3, -m, pytest, -q, --junitxml=/tmp/report.xml]'",
}


def for_all(field: str) -> str:
    """The remedy for a field of FOR_ALL that no instance of a file has."""
    return f"give it to all of them with --set {FOR_ALL[field]}"


_PLAIN = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _in_words(model: type[BaseModel], complaint: Any, under: str) -> tuple[str, str]:
    """What is wrong and what to do, of one of pydantic's complaints."""
    path, kind, given = complaint["loc"], complaint["type"], complaint["input"]
    field, limits = _dotted((under, *path) if under else path), complaint.get("ctx", {})
    if kind == "missing":
        return f"{field} is missing", "add it to the job or to the defaults"
    if kind == "extra_forbidden":
        return f"unknown field {field}", _unknown(model, path, in_defaults=bool(under))
    if kind == "string_type":
        remedy = "put it in quotes" if isinstance(given, (int, float)) else "write text"
        return f"{field} must be text, not {_shape(given)}", remedy
    if kind in ("tuple_type", "list_type"):
        return f"{field} must be a list, not {_shape(given)}", "write it as [first, second]"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{field} must be a mapping, not {_shape(given)}", "write it as name: value pairs"
    if kind == "too_short":
        return f"{field} is empty", "name at least one"
    if kind == "string_too_short":
        return f"{field} is empty", "write at least one character"
    if kind == "string_too_long":
        return f"{field} has {len(given)} characters", f"{limits['max_length']} are the limit"
    if kind == "string_pattern_mismatch":
        return f"{field} is {quoted(given)}", _ID_RULE
    if kind == "taken_for_another":
        return f"{field} {quoted(given)} would be taken for {'an option' if given[0] == '-' else 'an id'}", complaint[
            "msg"
        ]
    if kind == "literal_error":
        return f"{field} is {quoted(given)}", f"it must be {limits['expected']}"
    for bound, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if bound in limits:
            return f"{field} is {quoted(given)}", f"it must be {words} {limits[bound]}"
    wanted = _PLAIN.get(kind.partition("_")[0])
    return f"{field} is {_shape(given)}", f"it must be {wanted}" if wanted else complaint["msg"].lower()


def _unknown(model: type[BaseModel], path: Sequence[str | int], *, in_defaults: bool) -> str:
    name = str(path[-1])
    if model is StatedBatch and name in StatedJob.model_fields:
        return "that is a field of jobs: put it under defaults"
    if model is StatedJob and len(path) == 1 and name in StatedBatch.model_fields:
        return "that is a field of the batch: put it at the top of the file"
    known = _fields_at(model, path[:-1])
    if model is StatedJob and len(path) == 1 and not in_defaults:
        known.remove("repos")  # a job of ours has a repository of its own
    return nearest(name, known)


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The field names of the record that `path` leads to."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = _record_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _record_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return next(filter(None, map(_record_in, get_args(annotation))), None)
    return None


def _dotted(path: Sequence[str | int]) -> str:
    """A field's path as people write it; parts that come from the file are shown safely."""
    text = ""
    for part in path:
        name = part if isinstance(part, str) and part.isidentifier() and part.isascii() else quoted(part)
        text += f"[{part}]" if isinstance(part, int) else f".{name}" if text else name
    return text or "it"


def _shape(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return (
        quoted(value)
        if isinstance(value, str)
        else f"the number {value}"
        if isinstance(value, (int, float))
        else quoted(value)
    )
