"""docs/batch-file.md names every field with its default, and no field that is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ledger.records.budget import Budget
from ledger.records.job import Network, SandboxLimits, Tests
from ledger.records.publish import Publish
from patchyard.batchfile.stated import StatedAcceptance, StatedBatch, StatedJob
from policy.ceilings import DEFAULT, KIB, MIB

PAGE = (Path(__file__).parents[3] / "docs/batch-file.md").read_text()
_ROW = re.compile(r"^\| `(\w+)` \| .+ \| (.+) \|$", re.MULTILINE)
SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("## The batch", StatedBatch), ("## A job", StatedJob), ("### budget", Budget), ("### tests", Tests),
    ("### acceptance", StatedAcceptance), ("### limits", SandboxLimits), ("### network", Network),
    ("### publish", Publish),
]  # fmt: skip
OF_THE_MACHINE = {
    "memory_mb": DEFAULT.memory_bytes // MIB, "cpus": DEFAULT.cpus, "pids": DEFAULT.pids,
    "workspace_mb": DEFAULT.workspace_bytes // MIB, "tmp_mb": DEFAULT.tmp_bytes // MIB,
    "output_kb": DEFAULT.output_bytes // KIB,
}  # fmt: skip


def rows(heading: str) -> dict[str, str]:
    """The fields of a section's table with what stands under `default`."""
    section = PAGE.split(f"\n{heading}\n", 1)[1]
    return dict(_ROW.findall(re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]))


@pytest.mark.parametrize(("heading", "model"), SECTIONS)
def test_the_page_has_every_field_and_no_other(heading: str, model: type[BaseModel]) -> None:
    assert list(rows(heading)) == list(model.model_fields)


@pytest.mark.parametrize(("heading", "model"), SECTIONS)
def test_the_page_has_the_defaults_of_the_code(heading: str, model: type[BaseModel]) -> None:
    for name, shown in rows(heading).items():
        if model is StatedBatch and name == "jobs":
            continue
        field = model.model_fields[name]
        value: Any = OF_THE_MACHINE[name] if model is SandboxLimits else field.default
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
