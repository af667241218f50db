"""The replay model: decisions read from a file, in order. Deterministic, and free of any provider.

It serves tests, the demo, and running a job again from its recorded decisions, and it plays a provider's failures, so
that what a failed call costs and how it is tried again can be seen without a provider that fails.

The file is JSON lines, one decision each: `{"plan": "…"}`, `{"tool": "read_file", "args": {…}}` or `{"final": "…"}`,
with optional `usage` (`input_tokens`, `output_tokens`, `cost_usd`), `latency_ms`, and `error` (`timeout`,
`rate_limited`, `malformed`): such a line is one failed attempt of the call, billed with its usage, and the next
attempt reads the next line. The number of lines consumed is the agent's model state, `{"position": n}`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from math import isfinite
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ledger.errors import BadInput, Permanent
from ledger.records.base import Record
from ledger.records.budget import Amounts
from ledger.records.decision import Decision, Usage
from scheduler.models.model import (
    Exhausted,
    MalformedReply,
    ModelFailure,
    ModelTimeout,
    ModelUnusable,
    NotPrepared,
    OutOfTime,
    RateLimited,
    Reply,
    Stopped,
    Turn,
    amounts_of,
)

MAX_REPLAY_BYTES = 64 * 1024 * 1024
_FAILURES: dict[str, type[ModelFailure]] = {
    "timeout": ModelTimeout,
    "rate_limited": RateLimited,
    "malformed": MalformedReply,
}
_KINDS = ("plan", "tool", "delegate", "final")


class Line(Record):
    """One line of a replay. `number` counts from 1; a line with an `error` is a failed attempt, its decision void."""

    number: int
    decision: Decision | None
    usage: Usage = Usage()
    latency_ms: float = 0.0
    error: Literal["timeout", "rate_limited", "malformed"] | None = None


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _UsageForm(_Closed):
    input_tokens: int = Field(default=0, ge=0, le=10**12)
    output_tokens: int = Field(default=0, ge=0, le=10**12)
    cost_usd: float = Field(default=0, ge=0, le=1_000_000)


class _LineForm(_Closed):
    plan: str | None = None
    tool: str | None = Field(default=None, min_length=1, max_length=100)
    args: dict[str, Any] | None = None
    delegate: dict[str, Any] | None = None
    final: str | None = None
    usage: _UsageForm = _UsageForm()
    latency_ms: float = Field(default=0, ge=0, le=3_600_000)
    error: Literal["timeout", "rate_limited", "malformed"] | None = None


def parse_replay(data: bytes, where: str) -> list[Line]:
    """The lines of a replay file. Lines that hold only white space are skipped, and counted.

    Raises BadInput that names `where` and the line.
    """
    if len(data) > MAX_REPLAY_BYTES:
        raise BadInput(f"a replay of {len(data)} bytes", where=where, remedy=f"{MAX_REPLAY_BYTES} bytes are the limit")
    raw_lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    numbered = ((number, raw) for number, raw in enumerate(raw_lines, start=1) if raw.strip())
    return [_parse_line(raw, number, f"{where}, line {number}") for number, raw in numbered]


def _parse_line(raw: bytes, number: int, where: str) -> Line:
    value = _json_object(raw, where)
    nothing = next((name for name in value if value[name] is None), None)
    if nothing is not None:
        raise BadInput(f"{nothing} is null", where=where, remedy=_REMEDY)
    try:
        form = _LineForm.model_validate(value)
    except ValidationError as error:
        raise BadInput(_first_complaint(error), where=where, remedy=_REMEDY) from None
    present = [name for name in _KINDS if name in value]
    if "delegate" in present:
        raise BadInput(
            "delegate is not available with strategy single in this version",
            where=where,
            remedy="let the agent do the work itself with tool lines",
        )
    if len(present) > 1 or (not present and form.error is None):
        found = " and ".join(present) or "none of them"
        raise BadInput(f"exactly one of plan, tool, final is wanted, {found} is there", where=where, remedy=_REMEDY)
    if "args" in value and form.tool is None:
        raise BadInput("args without tool", where=where, remedy=_REMEDY)
    usage = Usage(
        input_tokens=form.usage.input_tokens,
        output_tokens=form.usage.output_tokens,
        cost_microusd=_microusd(form.usage.cost_usd),
    )
    decision = None if form.error else _decision(form, usage)
    return Line(number=number, decision=decision, usage=usage, latency_ms=form.latency_ms, error=form.error)


_REMEDY = (
    'a line is {"plan": TEXT}, {"tool": NAME, "args": {…}} or {"final": TEXT}, '
    "with optional usage, latency_ms and error"
)


def _decision(form: _LineForm, usage: Usage) -> Decision:
    if form.tool is not None:
        return Decision(kind="tool", tool=form.tool, arguments=form.args or {}, usage=usage)
    if form.plan is not None:
        return Decision(kind="plan", text=form.plan, usage=usage)
    return Decision(kind="final", text=form.final or "", usage=usage)


def _json_object(raw: bytes, where: str) -> dict[str, Any]:
    """One JSON object, read strictly: no duplicate keys, no NaN or Infinity, only text that UTF-8 can carry."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise BadInput("not valid UTF-8 text", where=where, remedy="write the file in UTF-8") from None
    except RecursionError:
        raise BadInput("nested too deeply", where=where) from None
    except ValueError as error:
        raise BadInput(f"not JSON ({error})", where=where, remedy="one JSON object a line") from None
    if not isinstance(value, dict):
        raise BadInput("not a JSON object", where=where, remedy=_REMEDY)
    return value


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twin!r} twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {field}"
    return f"{field}: {first['msg']}"


def _microusd(cost_usd: float) -> int:
    return int((Decimal(str(cost_usd)) * 1_000_000).to_integral_value(rounding=ROUND_HALF_EVEN))


class ReplayModel:
    """Reads the next line of the job's replay. `fetch` gets a replay's bytes by their SHA-256.

    Parsed replays, and why one cannot be used, are kept by SHA-256, the `keep` last used ones, for all threads of a
    process.
    """

    def __init__(self, fetch: Callable[[str], bytes], keep: int = 256) -> None:
        self._fetch, self._keep = fetch, keep
        self._known: OrderedDict[str, list[Line] | str] = OrderedDict()
        self._lock = threading.Lock()

    def estimate(self, turn: Turn) -> Amounts | None:
        """Exactly what the next line takes, None at the end. See Model.estimate."""
        line = _line_at(self._lines(turn), _position(turn))
        return amounts_of(line.usage) if line else None

    def prepare(self, turn: Turn) -> None:
        """Get and parse the job's replay, if that was not done."""
        sha256 = turn.job.replay_sha256
        if sha256 is None:
            return
        known: list[Line] | str
        try:
            known = parse_replay(self._fetch(sha256), f"replay {sha256[:12]}")
        except Permanent as error:
            known = error.message
        with self._lock:
            self._known[sha256] = known
            self._known.move_to_end(sha256)
            while len(self._known) > self._keep:
                self._known.popitem(last=False)

    def decide(self, turn: Turn) -> Reply:
        """The next line, after its latency. See Model.decide for the errors."""
        position = _position(turn)
        line = _line_at(self._lines(turn), position)
        if line is None:
            raise Exhausted(f"the replay has {position} decisions and all are used")
        _wait(line.latency_ms, turn)
        state = {"position": position + 1}
        if line.error is not None:
            message = f"played by line {line.number} of the replay: {line.error}"
            raise _FAILURES[line.error](message, usage=line.usage, model_state=state)
        assert line.decision is not None  # noqa: S101  (the parser gives each line one of the two)
        return Reply(decision=line.decision, model_state=state)

    def _lines(self, turn: Turn) -> list[Line]:
        sha256 = turn.job.replay_sha256
        if sha256 is None:
            raise ModelUnusable("the job's model is a replay, and the job has none")
        with self._lock:
            known = self._known.get(sha256)
            if known is None:
                raise NotPrepared
            self._known.move_to_end(sha256)
        if isinstance(known, str):
            raise ModelUnusable(known)
        return known


def _position(turn: Turn) -> int:
    return int(turn.model_state.get("position", 0))


def _line_at(lines: list[Line], position: int) -> Line | None:
    return lines[position] if position < len(lines) else None


def _wait(latency_ms: float, turn: Turn) -> None:
    if turn.stop.wait(min(latency_ms, turn.remaining_ms) / 1000):
        raise Stopped
    if latency_ms > turn.remaining_ms:
        raise OutOfTime
