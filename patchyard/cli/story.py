"""What happened in a job, in one line a step: the same words in `show` and `trace`.

Inputs and results of steps hold what a model and untrusted code wrote; everything here comes out printable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ledger.reads import StepRow
from patchyard.printable import printable

_LIMIT = 100


def step_words(step: StepRow) -> str:
    """What a step did, or is to do."""
    result = step.result or {}
    if "why" in result and "reason" in result:
        return _line(f"ended, {result['reason']}: {result['why']}")
    if step.kind == "decide":
        return _decision_words(result)
    if step.kind == "act":
        return _call_words(step.input, result)
    if step.kind == "verify":
        return _verdict_words(step.input, result)
    return short(result) if result else ""


def _decision_words(result: Mapping[str, Any]) -> str:
    if "ended" in result:
        return _line(f"ended: {result['ended']}")
    if result.get("kind") == "tool":
        return _line(f"calls {result.get('tool', '')}")
    if result.get("kind") in ("plan", "final"):
        return _line(f"{result['kind']}: {result.get('text', '')}")
    return short(result) if result else ""


def _call_words(call: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    words = f"{call.get('name', '')} {short(call.get('arguments') or {}, 60)}"
    error = result.get("error")
    if isinstance(error, Mapping):
        words += f" → {error.get('code', 'error')}: {error.get('message', '')}"
    elif result.get("ok"):
        words += " → ok"
    elif "given_back" in result:
        words += f" → given back: {result['given_back']}"
    return _line(words)


def _verdict_words(wanted: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    verdict = result.get("verdict") if isinstance(result.get("verdict"), Mapping) else result
    where = f"on the {wanted.get('on', 'head')}"
    if not isinstance(verdict, Mapping) or not verdict:
        return where
    if "explanation" in verdict:
        return _line(f"{where}: {verdict['explanation']}")
    return _line(f"{where}: {short(verdict)}")


def short(value: Any, limit: int = _LIMIT) -> str:
    """A value as compact JSON on one printable line of at most `limit` characters."""
    return printable(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str), limit)


def _line(text: str) -> str:
    return printable(" ".join(text.split()), _LIMIT)


def span_seconds(start: datetime | None, end: datetime | None) -> float:
    """Seconds between two moments, 0 where one is missing."""
    return (end - start).total_seconds() if start and end else 0.0


def time_spent(job_submitted: datetime, job_started: datetime | None, steps: list[StepRow]) -> dict[str, float]:
    """Where a job's time went, in seconds: waiting for its turn, deciding, in sandboxes, verifying."""
    spent = {"queued": span_seconds(job_submitted, job_started), "deciding": 0.0, "sandbox": 0.0, "verifying": 0.0}
    names = {"decide": "deciding", "act": "sandbox", "verify": "verifying", "publish": "verifying"}
    for step in steps:
        spent[names.get(step.kind, "deciding")] += span_seconds(step.started_at, step.finished_at)
        if step.seq > 1:
            spent["queued"] += max(0.0, span_seconds(step.created_at, step.started_at))
    return spent
