"""docs/batch-file.md has every field with its kind, bounds and default, no other, and examples that are batches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ledger.records.budget import Budget
from ledger.records.job import Network, SandboxLimits, Tests
from ledger.records.publish import Publish
from patchyard.batchfile.located import LinedDict
from patchyard.batchfile.problems import Problems
from patchyard.batchfile.stated import StatedAcceptance, StatedBatch, StatedJob, check
from patchyard.batchfile.yaml_text import parse_yaml
from policy.ceilings import DEFAULT, KIB, MIB, Limits
from policy.tools import RunShell

PAGE = (Path(__file__).parents[3] / "docs/batch-file.md").read_text()
_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \| (.+) \|$", re.MULTILINE)
SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("## The batch", StatedBatch), ("## A job", StatedJob), ("### budget", Budget), ("### tests", Tests),
    ("### acceptance", StatedAcceptance), ("### limits", SandboxLimits), ("### network", Network),
    ("### publish", Publish),
]  # fmt: skip
OF_THE_MACHINE = {
    "memory_mb": ("memory_bytes", MIB), "cpus": ("cpus", 1), "pids": ("pids", 1),
    "workspace_mb": ("workspace_bytes", MIB), "tmp_mb": ("tmp_bytes", MIB), "output_kb": ("output_bytes", KIB),
}  # fmt: skip
OPEN = {"jobs": "list, or text", "strategy": "text"}
"""Fields whose kind the code leaves open at first."""


def rows(heading: str) -> dict[str, tuple[str, str]]:
    """The fields of a section's table with what stands under `kind` and under `default`."""
    section = PAGE.split(f"\n{heading}\n", 1)[1]
    found = _ROW.findall(re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0])
    return {name: (kind, default) for name, kind, default in found}


def kind_of(shape: dict[str, Any]) -> str:
    """A field's part of the JSON schema as the page has it."""
    shape = next((one for one in shape.get("anyOf", ()) if one.get("type") != "null"), shape)
    if "enum" in shape:
        return " / ".join(f"`{one}`" for one in shape["enum"])
    if shape.get("type") == "array":
        return "list of texts" + between(shape.get("minItems"), shape.get("maxItems"))
    if shape.get("type") == "string":
        return "text" + (f", up to {shape['maxLength']:,} characters" if "maxLength" in shape else "")
    if shape.get("type") in ("integer", "number"):
        name = "whole number" if shape["type"] == "integer" else "number"
        return name + between(shape.get("minimum"), shape.get("maximum"), above=shape.get("exclusiveMinimum"))
    return {"boolean": "true or false"}.get(shape.get("type", ""), "mapping")


def between(least: float | None, most: float | None, *, above: float | None = None) -> str:
    """Bounds in words."""
    if least is not None and most is not None:
        return f", {number(least)} to {number(most)}"
    words = [f"above {number(above)}"] if above is not None else []
    words += [f"at least {number(least)}"] if least is not None else []
    words += [f"at most {number(most)}"] if most is not None else []
    return "".join(f", {word}" for word in words)


def number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def of_the_machine(name: str) -> tuple[str, Any]:
    """A limit's kind and default, which are the policy's."""
    field, unit = OF_THE_MACHINE[name]
    shape = Limits.model_json_schema()["properties"][field]
    bounds = {key: shape[key] / unit for key in ("minimum", "maximum")}
    default = getattr(DEFAULT, field)
    return kind_of(shape | bounds), default // unit if unit > 1 else default


@pytest.mark.parametrize(("heading", "model"), SECTIONS)
def test_the_page_has_every_field_and_no_other(heading: str, model: type[BaseModel]) -> None:
    assert list(rows(heading)) == list(model.model_fields)


@pytest.mark.parametrize(("heading", "model"), SECTIONS)
def test_the_page_has_the_kinds_and_bounds_of_the_code(heading: str, model: type[BaseModel]) -> None:
    shapes = model.model_json_schema()["properties"]
    for name, (kind, _) in rows(heading).items():
        wanted = of_the_machine(name)[0] if model is SandboxLimits else OPEN.get(name) or kind_of(shapes[name])
        assert kind == wanted, name


@pytest.mark.parametrize(("heading", "model"), SECTIONS)
def test_the_page_has_the_defaults_of_the_code(heading: str, model: type[BaseModel]) -> None:
    for name, (_, shown) in rows(heading).items():
        if model is StatedBatch and name == "jobs":
            continue
        field = model.model_fields[name]
        value: Any = of_the_machine(name)[1] if model is SandboxLimits else field.default
        if field.is_required():
            assert shown == "required", name
        elif isinstance(value, bool):
            assert shown == f"`{value}`".lower(), name
        elif isinstance(value, (str, int, float)):
            assert shown == f"`{value}`", name
        elif isinstance(value, tuple):
            assert shown == f"`{list(value)}`".replace("'", '"'), name
        else:
            assert not re.search(r"\d", shown), name


def test_the_time_of_a_command_is_the_tools() -> None:
    assert f"takes {RunShell.model_fields['timeout_seconds'].default} seconds" in PAGE


def test_the_examples_are_batches_and_one_of_them_has_every_field() -> None:
    seen: dict[str, set[str]] = {}
    examples = re.findall(r"^```yaml\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert examples
    for text in examples:
        top, problems = parse_yaml(text, "example"), Problems()
        check(StatedBatch, top, lambda loc: f"{loc}", problems)
        check(StatedJob, top["defaults"], lambda loc: f"{loc}", problems, partial_under="defaults")
        for job in top["jobs"]:
            check(StatedJob, {**top["defaults"], **job}, lambda loc: f"{loc}", problems)
            note_fields("## A job", {**top["defaults"], **job}, seen)
        note_fields("## The batch", top, seen)
        problems.raise_any()
    not_ours = {"## A job": {"repos"}}  # it is for other projects' files alone
    for heading, model in SECTIONS:
        assert model.model_fields.keys() - seen[heading] == not_ours.get(heading, set()), heading


def note_fields(heading: str, mapping: dict[str, Any], seen: dict[str, set[str]]) -> None:
    seen.setdefault(heading, set()).update(mapping)
    for name, value in mapping.items():
        if isinstance(value, LinedDict) and name != "defaults":
            note_fields(f"### {name}", value, seen)
