"""Runs a job again from its recorded decisions, and says where the two runs part.

The decisions of an ended job are in its decide steps. A second job with the same base, image, tests and budget gets
them as its replay; if tools are functions from tree to tree, each of its heads is the same as the first run's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.batches import Submitted, submission
from ledger.connect import Database
from ledger.errors import BadInput
from ledger.events import read_events
from ledger.reads import JobRow, StepRow, find_job, job_steps
from ledger.records.job import TERMINAL, BatchSpec


@dataclass(frozen=True)
class Difference:
    """Where a replay parts from its original: `at` names the place, the other two are what was seen there."""

    at: str
    original: str
    replayed: str


def recorded_decisions(steps: list[StepRow]) -> bytes:
    """The decisions of a run as a replay file. BadInput if there is none."""
    calls = {step.input.get("call_id"): step.input for step in steps if step.kind == "act"}
    decided = [step.result or {} for step in steps if step.kind == "decide" and step.state == "done"]
    lines = [line for result in decided if (line := _line(result, calls)) is not None]
    if not lines:
        raise BadInput("the job has no recorded decisions", remedy="only a job whose agent decided something replays")
    return "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines).encode()


def _line(result: dict[str, Any], calls: dict[Any, dict[str, Any]]) -> dict[str, Any] | None:
    """One decision as a line of a replay. A call's arguments are the input of its act step; finish keeps its own."""
    usage = result.get("usage") or {}
    figures = {
        "input_tokens": usage.get("input_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
        "cost_usd": usage.get("cost_microusd", 0) / 1_000_000,
    }
    match result.get("kind"):
        case "tool":
            call = calls.get(result.get("call_id"), result)
            return {"tool": result["tool"], "args": call.get("arguments") or {}, "usage": figures}
        case "plan" | "final" as kind:
            return {kind: result.get("text", ""), "usage": figures}
    return None


def steps_of_last_run(db: Database, job_id: int) -> list[StepRow]:
    """The steps since the job was last started from its base."""
    fresh_starts = [
        event.step_id or 0
        for event in read_events(db, job_id)
        if event.kind == "job_reopened" and event.body.get("afresh")
    ]
    since = fresh_starts[-1] if fresh_starts else 0
    return [step for step in job_steps(db, job_id) if step.id >= since]


def submit_replay(db: Database, job: JobRow) -> Submitted:
    """Submits the job's replay as a batch of its own, named after it and the moment. BadInput if it has not ended."""
    if job.state not in TERMINAL:
        raise BadInput(
            f"{job.batch_name}/{job.key} has not ended", remedy="wait for it with `patchyard watch`, or cancel it"
        )
    decisions = recorded_decisions(steps_of_last_run(db, job.id))
    name = f"replay-of-{job.id}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
    with submission(db) as opened:
        digest = opened.put_object("replay", decisions)
        opened.add(job.spec.model_copy(update={"model": "replay:recorded", "replay_sha256": digest}))
        return opened.finish(BatchSpec(name=name))


def first_difference(db: Database, original: JobRow, replayed: JobRow) -> Difference | None:
    """The first head, or the end, in which two runs of a job differ; None if they are the same."""
    heads = [_heads(db, job.id) for job in (original, replayed)]
    for number, pair in enumerate(zip(*heads, strict=False), start=1):
        if pair[0] != pair[1]:
            return Difference(f"change {number} of the tree", *pair)
    if len(heads[0]) != len(heads[1]):
        return Difference("the number of changes of the tree", str(len(heads[0])), str(len(heads[1])))
    if not end_was_decided(original):
        return None
    ends = [f"{job.state}, {job.reason}" for job in (original, replayed)]
    return Difference("the end", *ends) if ends[0] != ends[1] else None


def end_was_decided(job: JobRow) -> bool:
    """Whether the agent's decisions led to the end. A budget, a person or a dead provider ended it from outside, and a
    replay, whose decisions run out there, ends as `replay_exhausted`.
    """
    return job.verdict is not None and job.verdict.get("on") == "head"


def _heads(db: Database, job_id: int) -> list[str]:
    """The head trees of the last run of a job, in order."""
    heads: list[str] = []
    for event in read_events(db, job_id):
        if event.kind == "job_reopened" and event.body.get("afresh"):
            heads.clear()
        elif event.kind == "step_done" and event.body.get("head"):
            heads.append(event.body["head"])
    return heads


def replayed_job(db: Database, submitted: Submitted, key: str) -> JobRow:
    """The replay as the ledger has it now."""
    return find_job(db, f"{submitted.batch_id}/{key}")
