"""Rules: deny over ask over allow, deny by default, and a job that can only tighten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.errors import BadInput
from ledger.records.job import Network
from ledger.records.tool import ToolCall
from policy import rules
from policy.paths import check_glob, matches
from policy.rules import Judgement, judge, judge_changes
from policy.tools import CONTRACTS
from tests.unit.policy.test_tools import job


def judged(tool: str, arguments: dict[str, Any], **changes: Any) -> Judgement:
    call = ToolCall(call_id="c", name=tool, arguments=arguments)
    return judge(call, CONTRACTS[tool].parse(arguments), job(**changes))


def edits(*paths: str) -> dict[str, Any]:
    return {"edits": [{"path": path, "version": "absent", "new": "x"} for path in paths]}


def test_reading_and_commands_are_allowed_with_their_risk() -> None:
    assert judged("read_file", {"path": ".github/x"}, protected=("**",)).rule == "effect-none"
    tests = judged("run_tests", {})
    assert (tests.decision, tests.rule, tests.risk) == ("allow", "effect-none", "medium")
    shell = judged("run_shell", {"command": "rm -rf /"})
    assert (shell.decision, shell.rule, shell.risk) == ("allow", "contained-command", "medium")


def test_commands_of_a_job_with_a_network_are_of_high_risk_and_named_so() -> None:
    network = Network(allow=("cdn.test:443", "*.example.org:443"))
    for tool, arguments in (("run_tests", {}), ("run_shell", {"command": "true"})):
        seen = judged(tool, arguments, network=network)
        assert (seen.decision, seen.rule, seen.risk) == ("allow", "networked-command", "high")
        assert "reaches cdn.test:443, *.example.org:443 and nothing else" in seen.reason
    assert judged("read_file", {"path": "x"}, network=network).rule == "effect-none"


def test_a_patch_of_writable_paths_is_allowed() -> None:
    seen = judged("apply_patch", edits("src/a.py", "b.py"), protected=("tests/**",))
    assert (seen.decision, seen.rule, seen.risk) == ("allow", "workspace-write", "low")


def test_a_protected_path_is_denied_naming_rule_and_path() -> None:
    seen = judged("apply_patch", edits("src/a.py", "tests/x/y.py"), protected=("tests/**",))
    assert (seen.decision, seen.rule, seen.path, seen.code) == ("deny", "protected-path", "tests/x/y.py", "EPERM")
    assert "tests/x/y.py is protected" in seen.reason


def test_what_decides_how_tests_run_is_protected_unless_the_job_gives_it_back() -> None:
    seen = judged("apply_patch", edits("src/a.py", "src/conftest.py"), protected=("tests/**",))
    assert (seen.decision, seen.rule, seen.path) == ("deny", "protected-path", "src/conftest.py")
    assert "decides how tests run" in seen.reason
    assert judged("apply_patch", edits("src/conftest.py"), protected=("tests/**", "!conftest.py")).decision == "allow"
    assert judged("apply_patch", edits("tests/conftest.py"), protected=("!conftest.py", "tests/**")).decision == "deny"


def test_a_path_outside_of_writable_is_denied() -> None:
    seen = judged("apply_patch", edits("src/a.py", "setup.py"), writable=("src/**",))
    assert (seen.decision, seen.rule, seen.path, seen.code) == ("deny", "outside-writable", "setup.py", "EPERM")
    assert judged("apply_patch", edits("a"), writable=()).rule == "outside-writable"


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", "a/.gitattributes", ".gitmodules", "x/Jenkinsfile"])
def test_what_runs_elsewhere_needs_approval_and_without_a_person_is_denied(path: str) -> None:
    seen = judged("apply_patch", edits(path))
    assert (seen.decision, seen.rule, seen.asked, seen.code) == ("deny", "runs-elsewhere", True, "EAPPROVAL")
    assert judged("apply_patch", edits(path), approvals="ask").decision == "deny"
    assert judged("apply_patch", edits(path), approvals="allow").decision == "allow"


def test_deny_wins_over_ask_whatever_is_allowed_in_advance() -> None:
    seen = judged("apply_patch", edits(".github/x"), approvals="allow", protected=(".github/**",))
    assert (seen.decision, seen.rule, seen.code) == ("deny", "protected-path", "EPERM")


def test_what_a_command_left_behind_is_judged_by_the_same_rules() -> None:
    spec = job(protected=("tests/**",))
    assert judge_changes(["src/a"], spec, risk="medium").decision == "allow"
    assert judge_changes([], spec, risk="medium").decision == "allow"
    assert judge_changes(["src/a", "tests/a"], spec, risk="medium").path == "tests/a"


def test_what_no_rule_allows_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(CONTRACTS["finish"], name="odd", effect="external", idempotency="pure")
    monkeypatch.setitem(CONTRACTS, "odd", odd)
    seen = judge(ToolCall(call_id="c", name="odd", arguments={}), odd.parse({}), job(approvals="allow"))
    assert (seen.decision, seen.rule) == ("deny", "default")


def test_a_judgement_becomes_an_event_with_risk_rule_and_reason() -> None:
    event = judged("apply_patch", edits("tests/a"), protected=("tests/**",)).event("apply_patch", "call_3")
    assert event.kind == "policy_decision"
    assert {"what", "call_id", "decision", "rule", "risk", "reason", "path"} <= set(event.body)
    assert (event.body["call_id"], event.body["decision"]) == ("call_3", "deny")


@pytest.mark.parametrize(
    ("glob", "path", "meant"),
    [
        ("**", ".hidden/x", True),
        ("tests/**", "tests/a/b.py", True),
        ("tests/**", "src/tests/a", False),
        ("*.md", "docs/a.md", True),
        ("/x", "a/x", False),
        ("a*b", "a\nb", True),
    ],
)
def test_globs_are_read_as_git_reads_them(glob: str, path: str, meant: bool) -> None:
    assert matches((glob,), path) is meant


def test_no_globs_mean_nothing_and_a_later_one_takes_back() -> None:
    assert matches((), "a") is False
    assert matches(("tests/**", "!tests/data/**"), "tests/data/x") is False


@pytest.mark.parametrize("glob", ["!", "[z-a]", "a\\", "*a*b*c*d", "**/a/**/b/**/c/**"])
def test_a_glob_that_is_none_or_takes_long_is_refused(glob: str) -> None:
    with pytest.raises(BadInput):
        check_glob(glob)


def test_every_pattern_of_the_rules_is_one() -> None:
    assert not matches(rules.RUNS_ELSEWHERE, "src/a.py")
