"""`trace --format atif`: a trajectory that other tools can read."""

from __future__ import annotations

import json

import pytest

from ledger.records.step import NextStep
from tests.integration.cli.atif import check_trajectory
from tests.integration.cli.played import decide, play, spec, submit


def test_a_finished_job_is_a_whole_trajectory(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    play(ledger, "j", text="Look first.", output="1 passed")
    found = patchyard("trace", "b/j", "--format", "atif").json
    check_trajectory(found)
    sources = [step["source"] for step in found["steps"]]
    assert sources == ["user", "agent", "agent", "agent", "system"]
    issue, plan, call, final, verdict = found["steps"]
    assert (issue["message"], plan["message"], final["message"]) == ("It is broken.", "Look first.", "Look first.")
    (made,), (observed,) = call["tool_calls"], call["observation"]["results"]
    assert (made["function_name"], made["arguments"]) == ("run_tests", {})
    assert observed["source_call_id"] == made["tool_call_id"]
    assert json.loads(observed["content"])["data"]["output"] == "1 passed"
    assert "all is well" in verdict["observation"]["results"][0]["content"]
    assert found["final_metrics"]["total_cost_usd"] == pytest.approx(3 * 0.012345)
    assert sum(step.get("metrics", {}).get("prompt_tokens", 0) for step in found["steps"]) == 3000
    assert (found["session_id"], found["extra"]["reason"]) == ("b/j", "verified")
    assert "run_tests" in [tool["function"]["name"] for tool in found["agent"]["tool_definitions"]]


def test_a_job_that_waits_or_is_at_work_is_a_trajectory_too(ledger, patchyard):
    submit(ledger, "b", spec("waits"), spec("works"))
    call = {"call_id": "call_1", "name": "read_file", "arguments": {"path": "x"}}
    decide(
        ledger, "works", {"kind": "tool", "tool": "read_file", "call_id": "call_1"}, NextStep(kind="act", input=call)
    )
    waits = patchyard("trace", "b/waits", "--format", "atif").json
    check_trajectory(waits)
    assert len(waits["steps"]) == 1
    works = patchyard("trace", "b/works", "--format", "atif").json
    check_trajectory(works)
    assert works["steps"][1]["tool_calls"][0]["arguments"] == {"path": "x"}
    assert "observation" not in works["steps"][1]
