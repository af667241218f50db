"""Other projects' files taken as they are: SWE-bench instances and SWE-agent batch files."""

from __future__ import annotations

import json
import shlex
import tarfile
from io import BytesIO

import pytest

from ledger.objects import get_object
from ledger.reads import find_job
from tests.integration.cli.conftest import git, rows

HEAD = """\
name: swe
defaults:
  repos: mirrors/{owner}__{name}
  image: sandbox-python
  model: replay:one.jsonl
  tests: {command: [python3, -m, pytest, --junitxml=/tmp/report.xml]}
"""


@pytest.fixture
def instance(place):
    """A SWE-bench instance of a repository that is there."""
    (place / "mirrors").mkdir()
    (place / "repo").rename(place / "mirrors" / "acme__calc")
    repo = place / "mirrors" / "acme__calc"
    base = git(repo, "rev-parse", "HEAD")
    (repo / "tests" / "test_calc.py").write_text(
        "from calc import sub\n\n\ndef test_sub():\n    assert sub(2, 1) == 1\n"
    )
    (repo / "tests" / "data with space.txt").write_text("x\n")
    git(repo, "add", "-N", ".")
    patch = git(repo, "diff", "HEAD")
    git(repo, "reset", "-q", "--hard")
    (place / "one.jsonl").write_text('{"final": "x"}\n')
    return {
        "instance_id": "acme__calc-1",
        "repo": "acme/calc",
        "base_commit": base,
        "problem_statement": "sub adds.",
        "hints_text": "look at calc.py",
        "created_at": "2026-01-01T00:00:00Z",
        "version": "1.0",
        "patch": "diff --git a/calc.py b/calc.py\n--- the answer\n",
        "test_patch": patch,
        "FAIL_TO_PASS": '["tests/test_calc.py::test_sub"]',
        "PASS_TO_PASS": "[]",
        "environment_setup_commit": base,
    }


def check(ledger, place, instance) -> None:
    """The instance is in the ledger as a job with its hidden tests."""
    spec = find_job(ledger, "swe/acme__calc-1").spec
    assert spec.source.location == str(place / "mirrors" / "acme__calc")
    assert (spec.base_commit, spec.issue) == (instance["base_commit"], "sub adds.")
    assert spec.acceptance.fail_to_pass == ("tests/test_calc.py::test_sub",)
    assert spec.acceptance.command == spec.tests.command
    with tarfile.open(fileobj=BytesIO(get_object(ledger, spec.acceptance.files_sha256))) as tar:
        assert tar.getnames() == ["tests/data with space.txt", "tests/test_calc.py"]
        assert b"assert sub(2, 1) == 1" in tar.extractfile("tests/test_calc.py").read()
    assert "the answer" not in spec.model_dump_json()


@pytest.mark.parametrize("kind", ["jsonl", "json", "inside", "lists"])
def test_swe_bench_instances_as_lines_as_a_list_and_inside(ledger, patchyard, place, instance, kind):
    if kind == "lists":
        instance |= {"FAIL_TO_PASS": ["tests/test_calc.py::test_sub"], "PASS_TO_PASS": []}
    if kind == "inside":
        (place / "swe.yaml").write_text(HEAD + "jobs:\n  - " + json.dumps(instance) + "\n")
    else:
        name = "instances.json" if kind == "json" else "instances.jsonl"
        (place / name).write_text(json.dumps([instance] if kind == "json" else instance))
        (place / "swe.yaml").write_text(HEAD + f"jobs: {name}\n")
    done = patchyard("submit", "swe.yaml")
    assert (done.status, done.err) == (0, "")
    check(ledger, place, instance)


def test_a_file_of_instances_alone_with_defaults_from_the_command_line(ledger, patchyard, place, instance):
    (place / "swe.jsonl").write_text(json.dumps(instance))
    sets = ["repos=mirrors/{owner}__{name}", "image=sandbox-python", "model=replay:one.jsonl"]
    sets += ["tests.command=[python3, -m, pytest, --junitxml=/tmp/report.xml]"]
    done = patchyard("submit", "swe.jsonl", *(part for text in sets for part in ("--set", f"defaults.{text}")))
    assert (done.status, done.err) == (0, "")
    check(ledger, place, instance)


@pytest.mark.parametrize("field", ["image", "image_name", "docker_image"])
def test_an_instance_may_name_its_image(ledger, patchyard, place, instance, field):
    (place / "swe.jsonl").write_text(json.dumps(instance | {field: "swebench/x:latest"}))
    (place / "swe.yaml").write_text(HEAD + "jobs: swe.jsonl\n")
    refused = patchyard("submit", "swe.yaml")
    assert refused.status == 2
    assert refused.err.startswith("patchyard: swe.jsonl:1: image: swebench/x:latest is not pinned")
    pinned = f"swebench/x@sha256:{'c' * 64}"
    (place / "swe.jsonl").write_text(json.dumps(instance | {field: pinned}))
    assert patchyard("submit", "swe.yaml").status == 0
    assert find_job(ledger, "swe/acme__calc-1").spec.image == "sha256:" + "c" * 64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test_patch": "garbage"}, "swe.jsonl:1: test_patch does not apply to the base: No valid patches"),
        ({"test_patch": 5}, "swe.jsonl:1: test_patch must be text; write a unified diff"),
        ({"repo": "acme/none"}, "swe.jsonl:1: "),
        ({"base_commit": "0" * 39 + "1"}, "swe.jsonl:1: "),
        ({"FAIL_TO_PASS": "tests/x"}, "swe.jsonl:1: FAIL_TO_PASS is neither a list nor a list in JSON; write it as"),
        ({"FAIL_TO_PASS": "[]"}, "swe.jsonl:1: acceptance.fail_to_pass is empty; name at least one"),
        ({"FAIL_TO_PASS": None}, "swe.jsonl:1: test_patch without FAIL_TO_PASS: nothing says which"),
        ({"problem_statement": None}, "swe.jsonl:1: issue is missing; add it to the job or to the defaults"),
        ({"instance_id": "a b"}, "swe.jsonl:1: id is 'a b'; use 1 to 100"),
    ],
)
def test_a_wrong_instance_is_one_line(ledger, patchyard, place, instance, change, said):
    (place / "swe.jsonl").write_text(json.dumps(instance | change))
    (place / "swe.yaml").write_text(HEAD + "jobs: swe.jsonl\n")
    refused = patchyard("submit", "swe.yaml")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("patchyard: " + said)
    assert len(refused.err.splitlines()) == 1
    assert set(rows(ledger).values()) == {0}


def test_a_test_patch_that_does_not_fit_the_base_says_so(ledger, patchyard, place, instance):
    patch = instance["test_patch"].replace("def test_nothing", "def test_something")
    (place / "swe.jsonl").write_text(json.dumps(instance | {"test_patch": patch}))
    (place / "swe.yaml").write_text(HEAD + "jobs: swe.jsonl\n")
    refused = patchyard("submit", "swe.yaml")
    assert refused.status == 2
    assert "swe.jsonl:1: test_patch does not apply to the base: patch failed: tests/test_calc.py" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert set(rows(ledger).values()) == {0}


def test_swe_agent_batch_files(ledger, patchyard, place, instance):
    (place / "agent.yaml").write_text(
        "- image_name: sandbox-python\n  problem_statement: sub adds.\n  instance_id: new-name\n"
        "  repo_name: mirrors/acme__calc\n  extra_fields: {a: 1}\n"
        "- image_name: sandbox-python\n  problem_statement: sub adds.\n  id: old-name\n  repo_name: acme__calc\n"
        f"  base_commit: {instance['base_commit']}\n"
    )
    (place / "swe.yaml").write_text(HEAD.replace("{owner}__{name}", "{name}") + "jobs: agent.yaml\n")
    done = patchyard("submit", "swe.yaml")
    assert (done.status, done.err) == (0, "")
    for key in ("new-name", "old-name"):
        spec = find_job(ledger, f"swe/{key}").spec
        assert spec.source.location == str(place / "mirrors" / "acme__calc")
        assert (spec.base_commit, spec.acceptance, spec.image) == (instance["base_commit"], None, "sha256:" + "a" * 64)


def test_a_repository_inside_the_image_is_no_repository(ledger, patchyard, place, instance):
    (place / "agent.yaml").write_text(
        "- {image_name: sandbox-python, problem_statement: x, id: a, repo_name: testbed}\n"
    )
    head = HEAD.replace("  repos: mirrors/{owner}__{name}\n", "")
    (place / "swe.yaml").write_text(head + "jobs: agent.yaml\n")
    refused = patchyard("submit", "swe.yaml")
    assert refused.err.startswith("patchyard: agent.yaml:1: repo_name 'testbed' is a folder of the image, and the code")
    (place / "swe.yaml").write_text(head + "  repo: mirrors/acme__calc\njobs: agent.yaml\n")
    assert patchyard("submit", "swe.yaml").status == 0
    assert find_job(ledger, "swe/a").spec.source.location == str(place / "mirrors" / "acme__calc")


def test_defaults_that_only_say_how_to_run_hidden_tests_serve_both_kinds(ledger, patchyard, place, instance):
    plain = {"instance_id": "plain", "repo": "acme/calc", "problem_statement": "x", "base_commit": "HEAD"}
    (place / "swe.jsonl").write_text(json.dumps(instance) + "\n" + json.dumps(plain))
    (place / "swe.yaml").write_text(
        HEAD + "  acceptance: {command: [make, hidden], timeout_seconds: 7}\njobs: swe.jsonl\n"
    )
    assert patchyard("submit", "swe.yaml").status == 0
    acceptance = find_job(ledger, "swe/acme__calc-1").spec.acceptance
    assert (acceptance.command, acceptance.timeout_seconds) == (("make", "hidden"), 7)
    assert find_job(ledger, "swe/plain").spec.acceptance is None


def test_what_instances_lack_is_given_on_the_command_line_and_told_once(ledger, patchyard, place, instance):
    text = json.dumps(instance) + "\n" + json.dumps(instance | {"instance_id": "acme__calc-2"}) + "\n"
    (place / "instances.jsonl").write_text(text)
    repos = ["--set", "defaults.repos=mirrors/{owner}__{name}"]
    refused = patchyard("submit", "instances.jsonl", *repos)
    assert refused.status == 2
    assert refused.err.splitlines() == [
        "patchyard: instances.jsonl:1: image is missing; give it to all of them with "
        "--set defaults.image=sandbox-python",
        "patchyard: instances.jsonl:1: model is missing; give it to all of them with "
        "--set defaults.model=replay:replays/{id}.jsonl",
    ]
    given = [*repos, "--set", "defaults.image=sandbox-python", "--set", "defaults.model=replay:one.jsonl"]
    refused = patchyard("submit", "instances.jsonl", *given)
    command = "--set 'defaults.tests.command=[python3, -m, pytest, -q, --junitxml=/tmp/report.xml]'"
    assert refused.err == (
        "patchyard: instances.jsonl:1: acceptance.command is missing, and there are no tests to take it from; "
        f"give it to all of them with {command}\n"
    )
    assert patchyard("submit", "instances.jsonl", *given, *shlex.split(command)).status == 0
