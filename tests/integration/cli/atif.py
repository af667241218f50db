"""The rules of the ATIF trajectory format, version 1.7, restated for tests: fields, types, and what refers to what.

After the description at https://harborframework.com/docs/trajectory-format.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

TEXT, WHOLE, NUMBER, TABLE, ITEMS = (str,), (int,), (int, float), (dict,), (list,)
TRAJECTORY = {
    "schema_version": TEXT, "session_id": TEXT, "trajectory_id": TEXT, "agent": TABLE, "steps": ITEMS, "notes": TEXT,
    "final_metrics": TABLE, "continued_trajectory_ref": TEXT, "extra": TABLE, "subagent_trajectories": ITEMS,
}  # fmt: skip
AGENT = {"name": TEXT, "version": TEXT, "model_name": TEXT, "tool_definitions": ITEMS, "extra": TABLE}
STEP = {
    "step_id": WHOLE, "timestamp": TEXT, "source": TEXT, "model_name": TEXT, "reasoning_effort": TEXT, "message": TEXT,
    "reasoning_content": TEXT, "tool_calls": ITEMS, "observation": TABLE, "metrics": TABLE,
    "is_copied_context": (bool,), "llm_call_count": WHOLE, "extra": TABLE,
}  # fmt: skip
OF_AGENTS_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
CALL = {"tool_call_id": TEXT, "function_name": TEXT, "arguments": TABLE, "extra": TABLE}
RESULT = {"source_call_id": TEXT, "content": TEXT, "subagent_trajectory_ref": ITEMS, "extra": TABLE}
METRICS = {
    "prompt_tokens": WHOLE, "completion_tokens": WHOLE, "cached_tokens": WHOLE, "cost_usd": NUMBER, "extra": TABLE,
}  # fmt: skip
TOTALS = {
    "total_prompt_tokens": WHOLE, "total_completion_tokens": WHOLE, "total_cached_tokens": WHOLE,
    "total_cost_usd": NUMBER, "total_steps": WHOLE, "extra": TABLE,
}  # fmt: skip


def check_trajectory(found: dict[str, Any]) -> None:
    """Fails where `found` is no trajectory."""
    _check_fields(found, TRAJECTORY, {"schema_version", "agent", "steps"})
    assert found["schema_version"] == "ATIF-v1.7"
    _check_fields(found["agent"], AGENT, {"name", "version"})
    for tool in found["agent"].get("tool_definitions", []):
        assert tool["type"] == "function"
        assert {"name", "description", "parameters"} <= set(tool["function"])
    assert [step["step_id"] for step in found["steps"]] == list(range(1, len(found["steps"]) + 1))
    for step in found["steps"]:
        _check_step(step)
    totals = found["final_metrics"]
    _check_fields(totals, TOTALS, set())
    assert totals["total_steps"] == len(found["steps"]) or found.get("notes")
    below = found.get("subagent_trajectories", [])
    assert len({child["trajectory_id"] for child in below}) == len(below)
    for child in below:
        check_trajectory(child)


def _check_step(step: dict[str, Any]) -> None:
    _check_fields(step, STEP, {"step_id", "source", "message"})
    assert step["source"] in ("system", "user", "agent")
    datetime.fromisoformat(step["timestamp"])
    if step["source"] != "agent":
        assert not OF_AGENTS_ONLY & set(step)
    if step.get("llm_call_count") == 0:
        assert "metrics" not in step
    calls = set()
    for call in step.get("tool_calls", []):
        _check_fields(call, CALL, {"tool_call_id", "function_name", "arguments"})
        calls.add(call["tool_call_id"])
    if "observation" in step:
        assert set(step["observation"]) == {"results"}
        for result in step["observation"]["results"]:
            _check_fields(result, RESULT, set())
            assert result.get("source_call_id") in {None, *calls}
    if "metrics" in step:
        _check_fields(step["metrics"], METRICS, set())


def _check_fields(record: dict[str, Any], known: dict[str, tuple[type, ...]], wanted: set[str]) -> None:
    assert wanted <= set(record) <= set(known), set(record) ^ set(known)
    for name, value in record.items():
        assert isinstance(value, known[name]), (name, value)
