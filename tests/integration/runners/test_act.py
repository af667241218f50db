"""Calls of a model, done on a real ledger and real trees: observations, effects, receipts, recovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.connect import Database
from ledger.errors import Temporary
from ledger.events import read_events
from ledger.objects import packs_of
from ledger.reads import job_agents, job_steps
from ledger.records.budget import Amounts, Budget
from ledger.steps import MAX_ATTEMPTS, give_back
from runners.act import act
from runners.runner import Runner, exhausted_reason
from runners.workspace.source import Mirrors
from tests.integration.runners.conftest import Play, Played, Repository


def edit(played: Played, path: str, **fields: Any) -> dict[str, Any]:
    entry = played.store().entry(played.job().head_tree, path)
    return {"path": path, "version": entry.id if entry else "absent", **fields}


def events(database: Database, played: Played, kind: str) -> list[dict[str, Any]]:
    return [event.body for event in read_events(database, played.job_id) if event.kind == kind]


def test_a_call_becomes_an_observation_and_the_agent_s_next_turn(play: Play, database: Database) -> None:
    played = play()
    seen = played.call("read_file", path="calc/sums.py", lines=[1, 2])
    assert (seen.ok, seen.call_id, seen.error) == (True, "call_1", None)
    assert seen.data is not None
    assert seen.data["text"] == "def add(a, b):\n    return a - b\n"
    assert seen.cost == {"tool_calls": 1, "sandbox_ms": 0}
    assert seen.observed_at.endswith("+00:00")
    steps = job_steps(database, played.job_id)
    assert [(step.kind, step.state) for step in steps] == [("decide", "done"), ("act", "done"), ("decide", "ready")]
    assert steps[2].input == {"observed": steps[1].id}
    assert steps[1].spent == Amounts(tool_calls=1)
    (told,) = events(database, played, "tool_result")
    assert (told["tool"], told["ok"], told["code"]) == ("read_file", True, None)
    (judged,) = events(database, played, "policy_decision")
    assert (judged["decision"], judged["rule"], judged["risk"]) == ("allow", "effect-none", "low")


def test_every_reading_tool_is_called_by_its_name(play: Play) -> None:
    played = play()
    listed, found, diff = played.call("list_files"), played.call("search", pattern="a - b"), played.call("show_diff")
    assert listed.data is not None
    assert listed.data["total"] == 5
    assert found.data is not None
    assert [match["path"] for match in found.data["matches"]] == ["calc/sums.py"]
    assert diff.data == {"files": [], "files_changed": 0, "patch": "", "truncated": False}


def test_a_patch_moves_the_head_with_its_pack_intent_and_receipt(play: Play, database: Database) -> None:
    played = play()
    base = played.job().head_tree
    seen = played.call("apply_patch", edits=[edit(played, "calc/sums.py", old="a - b", new="a + b")])
    assert seen.ok
    assert played.content("calc/sums.py") == b"def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n"
    head = played.job().head_tree
    assert head != base
    assert len(packs_of(database, job_agents(database, played.job_id)[0].id)) == 1
    (intended,) = events(database, played, "action_intended")
    assert (intended["tool"], intended["before"], intended["after"]) == ("apply_patch", base, head)
    action = _action(database, intended["action"])
    assert action == ("done", {"before": base, "after": head})


def _action(database: Database, action_id: str) -> tuple[str, dict[str, Any]]:
    with database.transaction() as connection:
        row = connection.execute("SELECT state, receipt FROM ledger.actions WHERE action_id = %s", [action_id])
        found = row.fetchone()
    assert found is not None
    return found["state"], found["receipt"]


def test_another_worker_goes_on_from_the_ledger_alone(play: Play, runner: Runner, tmp_path: Path) -> None:
    played = play()
    played.call("apply_patch", edits=[edit(played, "calc/sums.py", old="a - b", new="a + b")])
    played.call("apply_patch", edits=[{"path": "new/x.txt", "version": "absent", "new": "x\n"}])
    played.runner = Runner(db=runner.db, mirrors=Mirrors(tmp_path / "other-home"), backend=runner.backend)
    seen = played.call("read_file", path="calc/sums.py")
    assert seen.data is not None
    assert "a + b" in seen.data["text"]
    assert played.call("read_file", path="new/x.txt").ok


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("delegate", {}, "ENOTOOL"),
        ("read_file", {}, "EINVAL"),
        ("read_file", {"path": "README.md", "more": 1}, "EINVAL"),
        ("read_file", {"path": "nope"}, "ENOENT"),
        ("read_file", {"path": "../../etc/passwd"}, "EPATH"),
        ("apply_patch", {"edits": [{"path": "README.md", "version": "0" * 40, "old": "c", "new": "d"}]}, "ESTALE"),
        ("apply_patch", {"edits": [{"path": "README.md", "version": "@README.md", "old": "z", "new": ""}]}, "ENOMATCH"),
        (
            "apply_patch",
            {"edits": [{"path": "README.md", "version": "@README.md", "old": "c", "new": ""}]},
            "EAMBIGUOUS",
        ),
        ("apply_patch", {"edits": [{"path": "tests/x.py", "version": "absent", "new": ""}]}, "EPERM"),
        ("apply_patch", {"edits": [{"path": ".github/ci.yml", "version": "absent", "new": ""}]}, "EAPPROVAL"),
        ("run_tests", {}, "ENOTESTS"),
        ("finish", {"x": 1}, "EINVAL"),
    ],
)
def test_a_bad_call_is_an_observation(
    play: Play, database: Database, tool: str, arguments: dict[str, Any], code: str
) -> None:
    played = play(protected=("tests/**",), tests=None)
    base = played.job().head_tree
    seen = played.call(tool, **arguments)
    assert seen.error is not None
    assert (seen.ok, seen.error.code, seen.error.retryable) == (False, code, False)
    assert seen.error.suggested_action
    assert (played.job().state, played.job().head_tree) == ("running", base)
    assert played.completions[-1].spent == Amounts(tool_calls=1)
    assert events(database, played, "tool_result")[0]["code"] == code
    assert played.call("list_files").ok


def test_a_refusal_is_written_into_the_history_with_rule_and_path(play: Play, database: Database) -> None:
    played = play(protected=("tests/**",))
    seen = played.call("apply_patch", edits=[{"path": "tests/x.py", "version": "absent", "new": ""}])
    assert seen.error is not None
    assert "protected-path" in seen.error.message
    assert "tests/x.py" in seen.error.message
    (judged,) = events(database, played, "policy_decision")
    assert (judged["decision"], judged["rule"], judged["path"]) == ("deny", "protected-path", "tests/x.py")
    assert events(database, played, "action_intended") == []


def test_a_replay_may_name_the_present_version_by_path(play: Play) -> None:
    played = play()
    for before, after in (("calc", "calc one"), ("one", "two")):
        edits = [{"path": "README.md", "version": "@README.md", "old": before, "new": after}]
        assert played.call("apply_patch", edits=edits).ok
    assert played.content("README.md") == b"calc two\n"
    gone = {"path": "gone", "version": "@gone", "old": "a", "new": "b"}
    assert played.refused("apply_patch", edits=[gone]) == "ENOENT"


def test_only_a_replay_may(play: Play) -> None:
    edits = [{"path": "README.md", "version": "@README.md", "old": "calc", "new": "x"}]
    assert play(model="openai:x").refused("apply_patch", edits=edits) == "ESTALE"


def test_finish_asks_for_verification(play: Play) -> None:
    played = play()
    assert played.call("finish", summary="done").ok
    assert played.claim().kind == "verify"
    assert played.job().state == "verifying"


def test_the_last_tool_call_of_a_budget_is_the_last(play: Play) -> None:
    played = play(budget=Budget(tool_calls=1))
    assert played.call("list_files").ok
    played.decide("list_files", {})
    assert played.try_claim() is None
    assert (played.job().state, played.job().reason) == ("budget_exhausted", "budget:tool_calls")


def test_without_sandbox_time_a_command_is_not_begun(play: Play) -> None:
    played = play(budget=Budget(sandbox_seconds=0.5))
    played.decide("run_shell", {"command": "true"})
    assert played.try_claim() is None
    assert played.job().reason == "budget:sandbox_ms"


def test_what_a_call_holds_is_its_upper_bound_within_what_is_free(play: Play) -> None:
    played = play(budget=Budget(sandbox_seconds=100))
    played.decide("run_tests", {})
    held = played.claim().held
    assert held == Amounts(tool_calls=1, sandbox_ms=65_000)
    played = play(budget=Budget(sandbox_seconds=40))
    played.decide("run_tests", {})
    assert played.claim().held.sandbox_ms == 30_000


def test_an_engine_that_is_away_is_asked_again_and_at_last_observed(play: Play, database: Database) -> None:
    played = play()
    played.decide("run_tests", {})
    for attempt in range(1, MAX_ATTEMPTS):
        claim = played.claim()
        assert claim.attempt == attempt
        with pytest.raises(Temporary):
            act(claim, played.runner)
        give_back(database, claim, why="engine", delay_seconds=0)
    completion = played.work()
    assert completion.result["error"]["code"] == "EBUSY"
    assert completion.result["error"]["retryable"] is True
    assert played.call("list_files").ok


def test_a_repository_that_is_gone_ends_the_job_at_last(play: Play, tmp_path: Path, repository: Repository) -> None:
    played = play()
    repository.path.rename(tmp_path / "elsewhere")
    played.decide("list_files", {})
    with pytest.raises(Temporary) as away:
        act(played.claim(), played.runner)
    assert exhausted_reason(away.value) == "repo_unavailable"


def test_a_commit_that_is_gone_ends_the_job(play: Play, repository: Repository) -> None:
    played = play(base_commit="1" * 40)
    played.decide("list_files", {})
    assert played.work().end == "repo_unavailable"
    assert (played.job().state, played.job().reason) == ("failed", "repo_unavailable")
