"""Contracts: one definition gives the schema and the validation, and every call has an upper bound of cost."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from ledger.records.budget import Amounts
from ledger.records.job import JobSpec, Tests
from ledger.records.source import SourceRef
from ledger.records.tool import ErrorCode
from policy.errors import ERRORS, ToolFailure, tool_error
from policy.tools import CONTRACTS, SANDBOX_GRACE_MS, contract_of, cost_bound


def job(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "key": "job",
        "source": SourceRef(kind="git", location="/nowhere"),
        "base_commit": "1" * 40,
        "base_tree": "2" * 40,
        "issue": "it is broken",
        "image": "sha256:" + "a" * 64,
        "image_name": "sandbox-python",
        "model": "replay:x",
        "tests": Tests(command=("true",), timeout_seconds=20),
    }
    return JobSpec.model_validate({**values, **changes})


def test_the_table_of_errors_is_closed_and_complete() -> None:
    assert set(ERRORS) == set(get_args(ErrorCode))
    assert {kind.mender for kind in ERRORS.values()} == {"model", "world", "person", "nobody"}
    assert {code for code, kind in ERRORS.items() if kind.retryable} == {"ETIMEDOUT", "EBUSY"}
    assert all(kind.suggested_action.endswith(".") for kind in ERRORS.values())


def test_a_failure_is_shown_with_its_row_or_its_own_advice() -> None:
    plain = ToolFailure("ENOENT", "there is no x").shown()
    assert plain == tool_error("ENOENT", "there is no x")
    assert plain.suggested_action == ERRORS["ENOENT"].suggested_action
    assert ToolFailure("ENOENT", "x", "Do y.").shown().suggested_action == "Do y."


def test_every_tool_of_the_contract_but_delegate_is_there() -> None:
    assert list(CONTRACTS) == [
        "list_files",
        "read_file",
        "search",
        "apply_patch",
        "run_tests",
        "run_shell",
        "show_diff",
        "finish",
    ]
    assert {name for name, contract in CONTRACTS.items() if contract.effect == "workspace"} == {
        "apply_patch",
        "run_shell",
    }


def objects(schema: Any) -> list[dict[str, Any]]:
    """All schemas of objects in a schema."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    here = [schema] if schema.get("type") == "object" else []
    return here + [found for item in schema.values() for found in objects(item)]


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_schemas_are_of_2020_12_and_closed(name: str) -> None:
    schema = contract_of(name).schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["type"] == "object"
    assert all(found["additionalProperties"] is False for found in objects(schema))
    with pytest.raises(ToolFailure, match="no_such_field"):
        contract_of(name).parse({"no_such_field": 1})


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("read_file", {}, "path: Field required"),
        ("read_file", {"path": 1}, "path: "),
        ("read_file", {"path": "a", "lines": [2, 1]}, "lines must be"),
        ("read_file", {"path": "a", "lines": ["1", 2]}, "lines.0: "),
        ("list_files", {"depth": "2"}, "depth: "),
        ("search", {"pattern": ""}, "pattern: "),
        ("run_shell", {"command": "a\0b"}, "NUL"),
        ("run_shell", {"command": "x", "timeout_seconds": 0}, "timeout_seconds: "),
        ("apply_patch", {"edits": []}, "edits: "),
        ("apply_patch", {"edits": [{"path": "a", "version": "v", "new": ""}]}, "edits.0: give either old or lines"),
        ("apply_patch", {"edits": [{"path": "a", "new": "", "old": "x"}]}, "edits.0.version: Field required"),
        ("apply_patch", {"edits": [{"path": "a", "version": "absent", "new": "", "old": "x"}]}, "neither"),
        ("apply_patch", {"edits": [{"path": "a", "version": "v", "new": "", "lines": [0, 0]}]}, "first >= 1"),
        ("apply_patch", {"edits": [{"path": "a", "version": "v", "new": "", "lines": [3, 1]}]}, "first - 1"),
        ("apply_patch", {"edits": [{"path": "a", "version": "v", "new": "", "old": "x", "lines": [1, 1]}]}, "either"),
        ("finish", {"summary": "\ud800"}, "not JSON"),
    ],
)
def test_invalid_arguments_are_named(tool: str, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ToolFailure) as failed:
        contract_of(tool).parse(arguments)
    assert failed.value.code == "EINVAL"
    assert field in failed.value.message


def test_a_tool_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(ToolFailure, match="apply_patch") as failed:
        contract_of("delegate")
    assert failed.value.code == "ENOTOOL"


def test_the_cost_bound_covers_the_time_limit_and_the_kill() -> None:
    one = Amounts(tool_calls=1)
    assert cost_bound("read_file", {"path": "a"}, job()) == one
    assert cost_bound("run_tests", {}, job()) == one + Amounts(sandbox_ms=20_000 + SANDBOX_GRACE_MS)
    assert cost_bound("run_tests", {}, job(tests=None)) == one
    assert cost_bound("run_shell", {"command": "x", "timeout_seconds": 7}, job()).sandbox_ms == 7_000 + SANDBOX_GRACE_MS
    assert cost_bound("run_shell", {}, job()) == one
    assert cost_bound("nothing", {}, job()) == one
