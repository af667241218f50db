"""What happened in a job, in one line a step: the same words in `show` and `trace`.

Inputs and results of steps hold what a model and untrusted code wrote; everything here comes out printable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ledger.reads import StepRow
from ledger.records.budget import RESOURCES
from patchyard.cli.units import amount_text, stated_name, stated_reason
from patchyard.printable import printable

_LIMIT = 200
_DIGEST = re.compile(r"[0-9a-f]{40,}")
_DIGITS = 12
_OWNER = re.compile(r"([^:]*:\d+)\..*")
"""A lease's owner: who, where, its pid, and then what tells one of that pid from another."""
_COUNTS = ("passed", "failed", "skipped")


def step_words(step: StepRow) -> str:
    """What a step did, or is to do."""
    result = step.result or {}
    if "why" in result and "reason" in result:
        return _line(f"ended, {stated_reason(str(result['reason']))}: {result['why']}")
    if step.kind == "decide":
        return _decision_words(result)
    if step.kind == "act":
        return _call_words(step.input, result)
    if step.kind == "verify":
        return _verdict_words(step.input, result)
    if step.kind == "publish" and "sha256" in result:
        return _line(f"{result.get('to', '')}, {result.get('bytes', 0)} bytes, sha256 {result['sha256']}")
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
        words += f" → {_outcome_words(result.get('data'))}"
    elif "given_back" in result:
        words += f" → given back: {result['given_back']}"
    return _line(words)


def _outcome_words(data: Any) -> str:
    """What came of a call that went well: of tests and of a command, what they ended with."""
    if not isinstance(data, Mapping):
        return "ok"
    if all(name in data for name in _COUNTS):
        return _ended_words(data) or tests_words(data)
    if "exit_code" in data:
        return _ended_words(data) or f"exit status {data['exit_code']}"
    return "ok"


def _ended_words(data: Mapping[str, Any]) -> str:
    return "" if data.get("ended", "exited") == "exited" else str(data.get("ended_because") or data["ended"])


def tests_words(counts: Mapping[str, Any]) -> str:
    """How many tests passed, failed and were skipped."""
    return ", ".join(f"{counts[name]} {name}" for name in _COUNTS)


def _verdict_words(wanted: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    verdict = result.get("verdict") if isinstance(result.get("verdict"), Mapping) else result
    where = f"on the {wanted.get('on', 'head')}"
    if not isinstance(verdict, Mapping) or not verdict:
        return where
    if "explanation" in verdict:
        said = str(verdict["explanation"])
        return _line(said if where in said else f"{where}: {said}")
    return _line(f"{where}: {short(verdict)}")


def event_words(kind: str, body: Mapping[str, Any]) -> str:
    """What an event says, in a line."""
    if kind == "decision":
        return _decision_words(body)
    if kind == "tool_result":
        counted = tests_words(body["tests"]) if isinstance(body.get("tests"), Mapping) else "ok"
        outcome = counted if body.get("ok") else f"{body.get('code', '')}: {body.get('message', '')}"
        return _line(f"{body.get('tool', '')} → {outcome}")
    if kind == "verification":
        return _verdict_words(body, body)
    if kind == "policy_decision":
        said = {name: body.get(name, "") for name in ("decision", "what", "reason", "rule")}
        return _line("{decision} {what}: {reason} (rule {rule})".format_map(said))
    if kind == "network_request":
        return _line(_request_words(body))
    if kind == "network_requests_left_out":
        return _line(f"{body.get('refused', 0)} refused requests more")
    if kind == "step_done":
        done = {name: body.get(name, "") for name in ("kind", "attempt", "owner")}
        owner = _OWNER.sub(r"\1", str(done["owner"]))
        return _line("{kind}, attempt {attempt}".format_map(done) + _spent(body) + f", by {owner}")
    if kind == "job_ended":
        words = [body.get("state", ""), stated_reason(str(body.get("reason", ""))), body.get("why", "")]
        return _line(", ".join(str(word) for word in words if word))
    if "why" in body:
        return _line(f"{body['why']} (attempt {body['attempt']})" if "attempt" in body else str(body["why"]))
    return _line(", ".join(f"{name} {_value_words(value)}" for name, value in body.items()))


def _value_words(value: Any) -> str:
    """A part of an event: digests with their first digits, amounts as people read them."""
    if isinstance(value, str):
        return value[:_DIGITS] if _DIGEST.fullmatch(value) else value
    if isinstance(value, Mapping) and value.keys() <= set(RESOURCES):
        return _amounts_words(value) or "nothing"
    return short(value)


def _amounts_words(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{stated_name(name)} {amount_text(name, amount)}" for name, amount in amounts.items() if amount)


def _request_words(body: Mapping[str, Any]) -> str:
    words = f"{body.get('outcome', '')} {body.get('host', '')}:{body.get('port', '')}"
    if body.get("address"):
        words += f" at {body['address']}, {body.get('up_bytes', 0)} bytes up, {body.get('down_bytes', 0)} down"
    return words + (f": {body['detail']}" if body.get("detail") else "")


def _spent(body: Mapping[str, Any]) -> str:
    spent = body.get("spent")
    named = _amounts_words(spent) if isinstance(spent, Mapping) else ""
    return f", spent {named}" if named else ""


def short(value: Any, limit: int = _LIMIT // 2) -> str:
    """A value as compact JSON on one printable line of at most `limit` characters."""
    return printable(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str), limit)


def _line(text: str) -> str:
    return printable(" ".join(text.split()), _LIMIT)


def span_seconds(start: datetime | None, end: datetime | None) -> float:
    """Seconds between two moments, 0 where one is missing."""
    return (end - start).total_seconds() if start and end else 0.0


def time_spent(steps: list[StepRow]) -> dict[str, float]:
    """Where a job's time went, in seconds: waiting for its turn, deciding, in sandboxes, verifying. What lies between
    an end and a new start is none of it."""
    spent = {"queued": 0.0, "deciding": 0.0, "sandbox": 0.0, "verifying": 0.0}
    names = {"decide": "deciding", "act": "sandbox", "verify": "verifying", "publish": "verifying"}
    for step in steps:
        spent[names.get(step.kind, "deciding")] += span_seconds(step.started_at, step.finished_at)
        spent["queued"] += max(0.0, span_seconds(step.created_at, step.started_at))
    return spent
