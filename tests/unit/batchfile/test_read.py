"""The top of a batch file, its defaults, its overrides, and where its jobs come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.errors import BadInput
from patchyard.batchfile import BadBatch, read_batch
from patchyard.batchfile.problems import MOST_SHOWN, Problems
from patchyard.batchfile.stated import merge

YAML = """\
name: fixes
weight: 2
max_parallel: 8
defaults:
  image: sandbox-python
  budget: {steps: 5}
jobs:
  - {id: one, repo: r, issue: i}
  - {id: two, repo: r, issue: i}
"""
TOML = """\
name = "fixes"
weight = 2
max_parallel = 8
[defaults]
image = "sandbox-python"
budget.steps = 5
[[jobs]]
id = "one"
repo = "r"
issue = "i"
[[jobs]]
id = "two"
repo = "r"
issue = "i"
"""
JSON = json.dumps(
    {
        "name": "fixes", "weight": 2, "max_parallel": 8,
        "defaults": {"image": "sandbox-python", "budget": {"steps": 5}},
        "jobs": [{"id": "one", "repo": "r", "issue": "i"}, {"id": "two", "repo": "r", "issue": "i"}],
    }
)  # fmt: skip


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into the working folder and gives its name."""
    monkeypatch.chdir(tmp_path)

    def writer(name: str, text: str | bytes) -> Path:
        Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
        return Path(name)

    return writer


def entries(batch):
    problems = Problems()
    found = [dict(entry.stated) for entry in batch.entries(problems)]
    problems.raise_any()
    return found


@pytest.mark.parametrize(("name", "text"), [("b.yaml", YAML), ("b.yml", YAML), ("b.toml", TOML), ("b.json", JSON)])
def test_one_batch_in_four_suffixes(write, name, text):
    batch = read_batch(write(name, text))
    assert (batch.spec.name, batch.spec.weight, batch.spec.max_parallel) == ("fixes", 2.0, 8)
    assert batch.defaults == {"image": "sandbox-python", "budget": {"steps": 5}}
    assert entries(batch) == [{"id": "one", "repo": "r", "issue": "i"}, {"id": "two", "repo": "r", "issue": "i"}]


@pytest.mark.parametrize("jobs", ["jobs.jsonl", "jobs.json", "jobs.yaml"])
def test_jobs_may_be_in_a_file_beside(write, jobs):
    write("jobs.jsonl", '{"id": "one"}\n\n{"id": "two"}')
    write("jobs.json", '[{"id": "one"},\n {"id": "two"}]')
    write("jobs.yaml", "- id: one\n\n- id: two")
    batch = read_batch(write("b.yaml", f"jobs: {jobs}"))
    assert [job["id"] for job in entries(batch)] == ["one", "two"]
    assert [entry.stated.line for entry in batch.entries(Problems())][1] == {"jobs.json": 2}.get(jobs, 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [("fixes.jsonl", '{"id": "a"}\n'), ("fixes.json", '[{"id": "a"}]'), ("fixes.yaml", "- id: a")],
)
def test_a_file_that_is_only_jobs_is_a_batch_named_after_it(write, name, text):
    batch = read_batch(write(name, text), sets=["defaults.image=x"])
    assert (batch.spec.name, batch.defaults, entries(batch)) == ("fixes", {"image": "x"}, [{"id": "a"}])


def test_set_overrides_are_typed_and_do_not_leak_through_anchors(write):
    text = "defaults:\n  budget: &b {steps: 5, agents: 1}\njobs: [{id: a, budget: *b}]"
    sets = ["defaults.budget.steps=10", "defaults.tests.command=[a, b]", "weight=3", "defaults.image=no"]
    batch = read_batch(write("b.yaml", text), name="b007", sets=sets)
    assert (batch.spec.name, batch.spec.weight) == ("b007", 3.0)
    assert batch.defaults["budget"] == {"steps": 10, "agents": 1}
    assert batch.defaults["tests"] == {"command": ["a", "b"]}
    assert batch.defaults["image"] == "no"
    assert entries(batch)[0]["budget"] == {"steps": 5, "agents": 1}


def test_mappings_merge_key_by_key_and_lists_replace():
    defaults = {"budget": {"steps": 1, "agents": 2}, "protected": ["a", "b"], "tests": {"command": ["x"]}}
    own = {"budget": {"steps": 9}, "protected": ["c"], "tests": None}
    assert merge(defaults, own) == {"budget": {"steps": 9, "agents": 2}, "protected": ["c"], "tests": None}
    assert defaults["budget"] == {"steps": 1, "agents": 2}


BAD = [
    ("b.yaml", "jobs: [{id: a}]\nname: x\nwieght: 2", "b.yaml:3: unknown field wieght; did you mean 'weight'?"),
    ("b.yaml", "name: x\nimage: y\njobs: [{id: a}]", "b.yaml:2: unknown field image; that is a field of jobs: put it"),
    (
        "b.yaml",
        "defaults:\n  budget:\n    step: 5\njobs: [{id: a}]",
        "b.yaml:3: unknown field defaults.budget.step; did",
    ),
    (
        "b.yaml",
        "defaults:\n  weight: 5\njobs: [{id: a}]",
        "b.yaml:2: unknown field defaults.weight; that is a field of the",
    ),
    ("b.yaml", "defaults: {tests: {cmd: [a]}}\njobs: [{id: a}]", "b.yaml:1: unknown field defaults.tests.cmd; did"),
    ("b.yaml", "defaults: {zzz: 1}\njobs: [{id: a}]", "b.yaml:1: unknown field defaults.zzz; known names are accept"),
    ("b.yaml", "defaults:\n  id: a\njobs: [{id: a}]", "b.yaml:2: an id in the defaults; give each job its own"),
    ("b.yaml", "weight: -1\njobs: [{id: a}]", "b.yaml:1: weight is '-1'; it must be more than 0"),
    ("b.yaml", "max_parallel: 0\njobs: [{id: a}]", "b.yaml:1: max_parallel is '0'; it must be at least 1"),
    ("b.yaml", "name: a b\njobs: [{id: a}]", "b.yaml:1: name is 'a b'; use 1 to 100 letters"),
    ("b.yaml", "name: 5\njobs: [{id: a}]", "b.yaml:1: name must be text, not the number 5; put it in quotes"),
    ("b.yaml", "defaults: [a]\njobs: [{id: a}]", "b.yaml:1: defaults must be a mapping, not a list"),
    ("b.yaml", "name: x", "b.yaml:1: jobs is missing; list at least one job under jobs"),
    ("b.yaml", "name: x\njobs: []", "b.yaml:2: there are no jobs; list at least one job under jobs"),
    ("b.yaml", "name: x\njobs:", "b.yaml:2: there are no jobs"),
    ("b.yaml", "name: x\njobs: 5", "b.yaml:2: jobs must be a list, or the path of a file with jobs"),
    ("b.yaml", "name: x\njobs: none.jsonl", "b.yaml:2: 'none.jsonl': no such file or directory; give the path"),
    ("b.yaml", "[]", "b.yaml:1: there are no jobs"),
    ("b.yaml", "", "b.yaml:1: the file is empty"),
    ("b.yaml", "just text", "b.yaml:1: a batch file must be a mapping"),
    ("b.yaml", b"name: x\n\xff: 1", "b.yaml:2: not UTF-8 text; save it as UTF-8"),
    ("b.txt", "name: x", "b.txt: unknown kind of file '.txt'; use one of .json, .toml, .yaml, .yml, .jsonl, .ndjson"),
    (
        "b.json",
        '{"jobs": [{"id": "a"}],\n "defaults": {"budget": {"steps": -1}}}',
        "b.json:2: defaults.budget.steps is '-1'",
    ),
    ("b.toml", "[[jobs]]\nid = 'a'\n[defaults]\npriority = 200", "b.toml:4: defaults.priority is '200'; it must be at"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD, ids=[message[:60] for _, _, message in BAD])
def test_a_mistake_is_one_line_with_its_place(write, name, text, message):
    with pytest.raises(BadInput) as caught:
        read_batch(write(name, text))
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["defaults"], "--set defaults: it is not key=value; write it as"),
        (["jobs.0.id=x"], "--set jobs.0.id=x: unknown key 'jobs'; known names are"),
        (["nmae=x"], "--set nmae=x: unknown key 'nmae'; did you mean 'name'?"),
        (["defaults.budget.stps=1"], "--set defaults.budget.stps=1: unknown field defaults.budget.stps; did you mean"),
        (
            ["defaults.budget.steps=many"],
            "--set defaults.budget.steps=many: defaults.budget.steps is 'many'; it must be a whole number",
        ),
        (["defaults.image.name=1"], "--set defaults.image.name=1: 'image' is not a mapping; set it as a whole"),
        (["defaults.tests={command: [a], cmd: 1}"], "--set defaults.tests={command: [a], cmd: 1}: unknown field"),
        (["weight=["], "--set weight=[:1: not well-formed YAML"),
    ],
)
def test_a_wrong_override_says_which(write, sets, message):
    with pytest.raises(BadInput) as caught:
        read_batch(write("b.yaml", YAML), sets=sets)
    assert caught.value.message.startswith(message)


def test_a_wrong_name_option_says_so(write):
    with pytest.raises(BadInput, match=r"^--name a/b: name is 'a/b'; use 1 to 100"):
        read_batch(write("b.yaml", YAML), name="a/b")


@pytest.mark.parametrize(("name", "what"), [("12", "an id"), ("-x", "an option")])
def test_a_name_that_stands_for_something_else_on_the_command_line_is_refused(write, name, what):
    with pytest.raises(
        BadInput, match=rf"^--name {name}: name '{name}' would be taken for {what}; begin it with a letter"
    ):
        read_batch(write("b.yaml", YAML), name=name)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"none.yaml: no such file or directory; give the path of a batch file"):
        read_batch(tmp_path / "none.yaml")


def test_all_mistakes_of_the_top_are_told_at_once(write):
    with pytest.raises(BadBatch) as caught:
        read_batch(write("b.yaml", "weight: 0\nnaem: x\ndefaults: {stp: 1}\njobs: []"))
    lines = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3", "4"]


def test_broken_json_lines_are_told_with_their_numbers_up_to_a_limit(write):
    write("jobs.jsonl", '{"id": "a"}\n' + "{\n" * 50 + "[]\n")
    batch = read_batch(write("b.yaml", "jobs: jobs.jsonl"))
    problems = Problems()
    assert [entry.stated["id"] for entry in batch.entries(problems)] == ["a"]
    with pytest.raises(BadBatch) as caught:
        problems.raise_any()
    lines = caught.value.message.splitlines()
    assert len(lines) == MOST_SHOWN + 1
    assert lines[0].startswith("jobs.jsonl:2: not well-formed JSON")
    assert lines[-1] == f"only the first {MOST_SHOWN} mistakes are shown; mend them and try again"


def test_a_job_that_is_no_mapping_is_told_and_the_next_is_read(write):
    batch = read_batch(write("b.yaml", "jobs:\n  - just text\n  - {id: b}"))
    problems = Problems()
    assert [entry.stated["id"] for entry in batch.entries(problems)] == ["b"]
    with pytest.raises(BadInput, match=r"^b.yaml:2: a job must be a mapping"):
        problems.raise_any()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
FIELDS = ["name", "weight", "max_parallel", "defaults", "jobs", "id", "budget", "tests", "acceptance", "instance_id"]
BATCHES = st.dictionaries(
    st.sampled_from(FIELDS), ANYTHING | st.lists(st.dictionaries(st.sampled_from(FIELDS), ANYTHING), max_size=3)
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES)
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path, content):
    file = tmp_path / "b.json"
    file.write_text(json.dumps(content, allow_nan=False, default=str) if _finite(content) else "{}")
    assert all(char.isprintable() for char in _message_of(file))


def _message_of(file: Path) -> str:
    try:
        entries(read_batch(file))
    except BadInput as refused:
        return refused.message.replace("\n", "")
    return ""


def _finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return False
    return True
