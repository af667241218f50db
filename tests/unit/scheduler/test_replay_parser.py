"""A replay file is read exactly as it is written, or refused in one line that names the file and the line."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import BadInput
from ledger.records.decision import Decision, Usage
from scheduler.models.replay import parse_replay

_text = st.text(st.characters(exclude_categories=["Cs"]))
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_usage = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": st.integers(0, 10**9),
        "output_tokens": st.integers(0, 10**9),
        "cost_usd": st.integers(0, 10**9).map(lambda microusd: float(Decimal(microusd) / 1_000_000)),
    },
)
_heads = st.one_of(
    st.fixed_dictionaries({"plan": _text}),
    st.fixed_dictionaries({"final": _text}),
    st.fixed_dictionaries(
        {"tool": st.text(min_size=1, max_size=20, alphabet="abc_")},
        optional={"args": st.dictionaries(_text, _json, max_size=3)},
    ),
)
_extras = st.fixed_dictionaries({}, optional={"usage": _usage, "latency_ms": st.integers(0, 5_000)})
_lines = st.builds(lambda head, extra: head | extra, _heads, _extras)


def _encoded(lines: list[dict[str, Any]], end: str = "\n") -> bytes:
    return "".join(json.dumps(line, ensure_ascii=False) + end for line in lines).encode()


@given(st.lists(_lines, max_size=6), st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"]))
def test_every_line_comes_back_as_it_was_written(lines: list[dict[str, Any]], end: str) -> None:
    parsed = parse_replay(_encoded(lines, end), "replay.jsonl")
    assert len(parsed) == len(lines)
    for line, source in zip(parsed, lines, strict=True):
        assert line.decision is not None
        assert line.decision.tool == source.get("tool", "")
        assert line.decision.arguments == source.get("args", {})
        assert line.decision.text == source.get("plan", source.get("final", ""))
        assert line.decision.usage == line.usage
        usage = source.get("usage", {})
        assert line.usage.input_tokens == usage.get("input_tokens", 0)
        assert line.usage.cost_microusd == round(Decimal(str(usage.get("cost_usd", 0))) * 1_000_000)
        assert line.latency_ms == source.get("latency_ms", 0)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_but_bad_input(data: bytes) -> None:
    refusal = ""
    try:
        parse_replay(data, "replay.jsonl")
    except BadInput as error:
        refusal = error.message
    assert refusal == "" or refusal.startswith("replay.jsonl, line ")
    assert "\n" not in refusal


@given(_lines, st.text("abcdefgh", min_size=1, max_size=8), st.integers(0, 4))
def test_an_unknown_field_is_refused_with_its_line(line: dict[str, Any], name: str, before: int) -> None:
    data = _encoded([{"plan": "first"}] * before + [line | {f"x_{name}": 1}])
    with pytest.raises(BadInput) as refused:
        parse_replay(data, "dir/replay.jsonl")
    assert refused.value.where == f"dir/replay.jsonl, line {before + 1}"
    assert f"unknown field x_{name}" in refused.value.what


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", None),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "exactly one of plan, tool, final"),
        ('{"plan": "a", "final": "b"}', "plan and final is there"),
        ('{"plan": null}', "plan is null"),
        ('{"plan": 3}', "plan"),
        ('{"plan": "a", "plan": "b"}', "the field 'plan' twice"),
        ('{"plan": "a", "args": {}}', "args without tool"),
        ('{"tool": ""}', "tool"),
        ('{"tool": "t", "args": [1]}', "args"),
        ('{"tool": "t", "args": {"n": NaN}}', "NaN"),
        ('{"tool": "t", "args": {"n": 1e999}}', "out of range"),
        ('{"tool": "t", "args": {"s": "\\ud800"}}', "UTF-8"),
        ('{"tool": "t", "args": ' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}", "nested too deeply"),
        ('{"tool": "t", "args": {"n": ' + "9" * 5_000 + "}}", "not JSON"),
        ('{"final": "a", "usage": {"input_tokens": -1}}', "usage.input_tokens"),
        ('{"final": "a", "usage": {"input_tokens": 1.5}}', "usage.input_tokens"),
        ('{"final": "a", "usage": {"input_tokens": true}}', "usage.input_tokens"),
        ('{"final": "a", "usage": {"tokens": 1}}', "unknown field usage.tokens"),
        ('{"final": "a", "latency_ms": -1}', "latency_ms"),
        ('{"final": "a", "latency_ms": "fast"}', "latency_ms"),
        ('{"final": "a", "error": "tired"}', "error"),
        (
            '{"delegate": {"role": "tester", "goal": "g", "share": 0.3, "replay": "r.jsonl"}}',
            "delegate is not available",
        ),
    ],
)
def test_what_is_no_decision_is_refused(line: str, complaint: str | None) -> None:
    data = b'{"plan": "fine"}\n' + line.encode() + b"\n"
    if complaint is None:
        assert len(parse_replay(data, "r")) == 1
        return
    with pytest.raises(BadInput) as refused:
        parse_replay(data, "r")
    assert refused.value.where == "r, line 2"
    assert complaint in refused.value.message
    assert "\n" not in refused.value.message


def test_bytes_that_are_not_utf8_are_refused_with_their_line() -> None:
    with pytest.raises(BadInput, match="r, line 2: not valid UTF-8"):
        parse_replay(b'{"plan": "fine"}\n{"plan": "\xff"}\n', "r")


@pytest.mark.parametrize("error", ["timeout", "rate_limited", "malformed"])
@pytest.mark.parametrize("head", ['"plan": "p", ', '"tool": "t", ', ""])
def test_a_line_with_an_error_is_a_failed_attempt_with_its_usage(error: str, head: str) -> None:
    [line] = parse_replay(f'{{{head}"error": "{error}", "usage": {{"input_tokens": 12}}}}'.encode(), "r")
    assert (line.decision, line.error, line.usage) == (None, error, Usage(input_tokens=12))


@pytest.mark.parametrize(("cost", "microusd"), [("0.0125", 12_500), ("1e-6", 1), ("0.1", 100_000), ("3", 3_000_000)])
def test_money_becomes_whole_millionths(cost: str, microusd: int) -> None:
    [line] = parse_replay(f'{{"final": "", "usage": {{"cost_usd": {cost}}}}}'.encode(), "r")
    assert line.usage.cost_microusd == microusd


def test_a_file_without_lines_has_no_decisions() -> None:
    assert parse_replay(b"\xef\xbb\xbf\n", "r") == []
    assert parse_replay(b"", "r") == []


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    [line] = parse_replay(b'\xef\xbb\xbf{"plan": "p"}', "r")
    assert line.decision == Decision(kind="plan", text="p")
