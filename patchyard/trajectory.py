"""A job as a trajectory in ATIF, the Agent Trajectory Interchange Format of the Harbor project, version 1.7.

The format: https://harborframework.com/docs/trajectory-format (version 1.8 adds audio only, so that readers of either
version take this). The user's step is the issue; each turn of the model is an agent's step with its call and what was
observed of it; verifications are steps of the system, since the model has no part in them. An agent that another one
started is embedded with its parent.
"""

from __future__ import annotations

import importlib.metadata
import json
from datetime import datetime
from typing import Any

from ledger.reads import AgentRow, JobRow, StepRow
from policy.tools import CONTRACTS, ToolContract

SCHEMA_VERSION = "ATIF-v1.7"


def trajectory(job: JobRow, agents: list[AgentRow], steps: list[StepRow]) -> dict[str, Any]:
    """The trajectory of the job's root agent, with those of its descendants in it."""
    root = next(agent for agent in agents if agent.parent_id is None)
    whole = _of_agent(job, root, agents, steps)
    whole["extra"] = {
        "state": job.state,
        "reason": job.reason,
        "base_commit": job.spec.base_commit,
        "head_tree": job.head_tree,
        "patch_sha256": job.patch_sha256,
    }
    return whole


def _of_agent(job: JobRow, agent: AgentRow, agents: list[AgentRow], steps: list[StepRow]) -> dict[str, Any]:
    own = sorted((step for step in steps if step.agent_id == agent.id), key=lambda step: step.seq)
    found = {
        "schema_version": SCHEMA_VERSION,
        "session_id": f"{job.batch_name}/{job.key}",
        "trajectory_id": f"agent-{agent.id}",
        "agent": {
            "name": "patchyard",
            "version": importlib.metadata.version("patchyard"),
            "model_name": job.spec.model,
            "tool_definitions": [_definition(contract) for contract in CONTRACTS.values()],
            "extra": {"role": agent.role},
        },
        "steps": _numbered([_task(job, agent), *_turns(own)]),
        "final_metrics": _totals(agent, own),
    }
    below = [_of_agent(job, child, agents, steps) for child in agents if child.parent_id == agent.id]
    return found | ({"subagent_trajectories": below} if below else {})


def _definition(contract: ToolContract) -> dict[str, Any]:
    """A tool in the form of OpenAI's function calling, which ATIF asks for."""
    function = {"name": contract.name, "description": contract.description, "parameters": contract.schema()}
    return {"type": "function", "function": function}


def _numbered(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]


def _task(job: JobRow, agent: AgentRow) -> dict[str, Any]:
    return {"timestamp": _iso(agent.created_at), "source": "user", "message": agent.goal or job.spec.issue}


def _turns(steps: list[StepRow]) -> list[dict[str, Any]]:
    calls = {step.input.get("call_id"): step for step in steps if step.kind == "act"}
    turns = []
    for step in steps:
        if step.state not in ("done", "failed") or not step.result:
            continue
        if step.kind == "decide":
            turns.append(_turn(step, calls))
        elif step.kind == "verify":
            turns.append(_verification(step))
    return turns


def _turn(step: StepRow, calls: dict[Any, StepRow]) -> dict[str, Any]:
    """One turn of the model: what it said or called, what was observed, and what it cost."""
    result = step.result or {}
    found: dict[str, Any] = {
        "timestamp": _iso(step.finished_at or step.created_at),
        "source": "agent",
        "message": str(result.get("text", result.get("ended", result.get("given_back", "")))),
    }
    if "kind" in result:
        found["metrics"] = _metrics(result.get("usage") or {})
        found["llm_call_count"] = 1
    if result.get("kind") == "tool":
        call_id = str(result.get("call_id"))
        act = calls.get(call_id)
        arguments = act.input.get("arguments", {}) if act else result.get("arguments", {})
        found["tool_calls"] = [
            {"tool_call_id": call_id, "function_name": str(result.get("tool")), "arguments": arguments}
        ]
        if act is not None and act.result is not None:
            found["observation"] = {"results": [{"source_call_id": call_id, "content": _observed(act.result)}]}
    found["extra"] = {"seq": step.seq, "attempts": step.attempt, "step_state": step.state}
    return found


def _observed(result: dict[str, Any]) -> str:
    """What the model was shown of a call's result, as JSON text."""
    shown = {name: result[name] for name in ("ok", "data", "error", "truncated") if name in result}
    return json.dumps(shown or result, ensure_ascii=False)


def _verification(step: StepRow) -> dict[str, Any]:
    content = json.dumps(step.result, ensure_ascii=False)
    return {
        "timestamp": _iso(step.finished_at or step.created_at),
        "source": "system",
        "message": f"verification on the {step.input.get('on', 'head')}",
        "observation": {"results": [{"content": content}]},
        "extra": {"seq": step.seq, "attempts": step.attempt, "step_state": step.state},
    }


def _metrics(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": int(usage.get("input_tokens", 0)),
        "completion_tokens": int(usage.get("output_tokens", 0)),
        "cost_usd": int(usage.get("cost_microusd", 0)) / 1_000_000,
    }


def _totals(agent: AgentRow, steps: list[StepRow]) -> dict[str, Any]:
    """What the agent's account has spent, failed calls included, which no step shows."""
    spent = agent.account.spent
    return {
        "total_prompt_tokens": spent.input_tokens,
        "total_completion_tokens": spent.output_tokens,
        "total_cost_usd": spent.cost_microusd / 1_000_000,
        "total_steps": 1 + len(_turns(steps)),
        "extra": {"tool_calls": spent.tool_calls, "sandbox_ms": spent.sandbox_ms},
    }


def _iso(moment: datetime) -> str:
    return moment.isoformat()
