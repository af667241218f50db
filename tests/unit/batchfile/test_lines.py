"""The three readers agree on values, and know the line of everything they read."""

from __future__ import annotations

import json
import time

import pytest
import tomlkit
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import BadInput
from patchyard.batchfile.json_text import parse_json, parse_json_line
from patchyard.batchfile.located import LinedDict, LinedList, line_of
from patchyard.batchfile.toml_text import parse_toml
from patchyard.batchfile.yaml_text import parse_yaml

YAML = """\
name: x
defaults: &d
  base: no
  released: 2024-01-01
  budget: {steps: 5,
    tool_calls: 6}
jobs:
  - id: "1"
    issue: |
      first
      second
  -
    <<: *d
    id: two
"""
TOML = """\
name = "x" # a comment with [brackets] and "quotes"

[defaults]
budget.steps = 5
tests = { command = ["a",   # not ] the end
    "b"], report = "/x" }
issue = \"\"\"
[not a table]
key = 1 \\\"""
\"\"\"

[[jobs]]
id = "a"
  [jobs.budget]
  steps = 1

[[jobs]]
"id" = 'b"'
list = [ {a = 1},
  {a = 2} ]
"""
JSON = '{"name": "x",\n "jobs": [{"id": "a"},\n  {"id": "b,}\\"\\n",\n   "list": [[1],\n [2]]}],\n "weight": 2}'


@pytest.mark.parametrize(
    ("parse", "text", "path", "line"),
    [
        (parse_yaml, YAML, ("name",), 1),
        (parse_yaml, YAML, ("defaults", "budget", "tool_calls"), 6),
        (parse_yaml, YAML, ("jobs", 0, "issue"), 9),
        (parse_yaml, YAML, ("jobs", 1, "id"), 14),
        (parse_yaml, YAML, ("jobs", 1, "base"), 3),
        (parse_toml, TOML, ("defaults", "budget", "steps"), 4),
        (parse_toml, TOML, ("defaults", "tests", "command", 1), 6),
        (parse_toml, TOML, ("defaults", "tests", "report"), 6),
        (parse_toml, TOML, ("defaults", "issue"), 7),
        (parse_toml, TOML, ("jobs", 0, "budget", "steps"), 15),
        (parse_toml, TOML, ("jobs", 1), 17),
        (parse_toml, TOML, ("jobs", 1, "id"), 18),
        (parse_toml, TOML, ("jobs", 1, "list", 1, "a"), 20),
        (parse_json, JSON, ("name",), 1),
        (parse_json, JSON, ("jobs", 1), 3),
        (parse_json, JSON, ("jobs", 1, "list", 1, 0), 5),
        (parse_json, JSON, ("weight",), 6),
    ],
)
def test_each_value_knows_its_line(parse, text, path, line):
    value = parse(text, "f")
    assert line_of(value, path, 1) == (line, len(path))


def test_a_missing_field_stands_where_its_mapping_stands():
    value = parse_yaml(YAML, "f")
    assert line_of(value, ("jobs", 1, "repo"), 1) == (13, 2)


def test_yaml_keeps_words_that_only_look_like_something_else():
    value = parse_yaml("[no, on, y, 2024-01-01, 12:30, 12e4567, 010, ~, true, 0x10, 1.0e3, .5, '5']", "f")
    assert value == ["no", "on", "y", "2024-01-01", "12:30", "12e4567", 10, None, True, 16, 1000.0, 0.5, "5"]


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_yaml, "a: 1\nb: 2\na: 3", "f:3: 'a' is here a second time, first on line 1; remove one of the two"),
        (parse_yaml, "a: !!python/name:os.system x", "f:1: the tag 'tag:yaml.org,2002:python/name:os.system' is not"),
        (parse_yaml, "\na: [", "f:2: not well-formed YAML: did not find"),
        (parse_yaml, "- *x", "f:1: not well-formed YAML: found undefined alias"),
        (parse_yaml, "a: &a [*a]", "f:1: an anchor contains itself"),
        (parse_yaml, "a: 1\n---\nb: 1", "f:2: not well-formed YAML:"),
        (parse_yaml, "? [x]\n: 1", "f:1: a key must be text"),
        (parse_yaml, "a: \x07", "f: not well-formed YAML: unacceptable character"),
        (parse_yaml, "[" * 5000, "f:1: not well-formed YAML: exceeded maximum nesting depth"),
        (parse_yaml, "a: " + "9" * 5000, "f:1: '9999"),
        (parse_yaml, "<<: 5", "f:1: << takes a mapping"),
        (parse_toml, "a = 1\nb = \n", "f:2: not well-formed TOML: Invalid value"),
        (parse_toml, "a = 1\na = 2", "f:2: not well-formed TOML: Cannot overwrite a value"),
        (parse_toml, "a = [", "f:1: not well-formed TOML:"),
        (parse_json, '{"a": 1,\n"a": 2}', "f:2: 'a' is here a second time, first on line 1"),
        (parse_json, '{"a": NaN}', "f:1: not well-formed JSON: NaN is not JSON"),
        (parse_json, '{"a":\n', "f:2: not well-formed JSON: Expecting value"),
        (parse_json, "[" * 100_000, "f:1: nested too deeply"),
    ],
)
def test_a_text_that_is_wrong_is_one_line(parse, text, message):
    with pytest.raises(BadInput) as caught:
        parse(text, "f")
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message
    assert "; " in caught.value.message


def test_a_json_line_knows_its_number_and_refuses_repeated_keys():
    assert parse_json_line('{"a": {"b": 1}}', "f", 7) == {"a": {"b": 1}}
    with pytest.raises(BadInput, match=r"^f:7: not well-formed JSON: 'a' is there twice"):
        parse_json_line('{"a": 1, "a": 2}', "f", 7)
    with pytest.raises(BadInput, match=r"^f:7: not well-formed JSON: Expecting"):
        parse_json_line('{"a": ', "f", 7)


def test_aliases_cannot_multiply_a_document():
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
    started = time.monotonic()
    with pytest.raises(BadInput, match="anchors stand for more than a million values"):
        parse_yaml("a0: &a0 [x]\n" + levels, "f")
    assert time.monotonic() - started < 5


NAME = st.text("abz-_. é\"'#[", max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
TABLE = st.dictionaries(NAME, PLAIN, max_size=5)


def without_nulls(value):
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def every_path(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from every_path(item, (*path, key))


def check_lines(value, text):
    """Every path leads to a line that exists."""
    last = text.count("\n") + 1
    for path in every_path(value):
        line, found = line_of(value, path, 1)
        assert found == len(path)
        assert 1 <= line <= last


@settings(max_examples=150, deadline=None)
@given(TABLE)
def test_what_was_dumped_is_what_is_read(table):
    for text in (json.dumps(table), json.dumps(table, indent=1, ensure_ascii=False)):
        value = parse_json(text, "f")
        assert value == table
        check_lines(value, text)
    text = yaml.safe_dump(table, allow_unicode=True)
    value = parse_yaml(text, "f")
    assert value == table
    check_lines(value, text)
    text = tomlkit.dumps(without_nulls(table))
    value = parse_toml(text, "f")
    assert value == without_nulls(table)
    check_lines(value, text)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["id", "issue", "n"]), st.text("xy\n", max_size=5), max_size=3)))
def test_items_of_a_list_stand_in_order(items):
    text = json.dumps({"jobs": items}, indent=1)
    jobs = parse_json(text, "f")["jobs"]
    assert isinstance(jobs, LinedList)
    assert all(isinstance(job, LinedDict) for job in jobs)
    assert jobs.lines == sorted(set(jobs.lines))
