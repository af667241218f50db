"""run_tests and run_shell in real sandboxes: what is shown, what is kept, and every way in which it can go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.events import read_events
from ledger.evidence import find_evidence
from ledger.objects import get_object
from ledger.reads import job_sandboxes
from ledger.records.budget import Budget
from ledger.records.job import SandboxLimits, Tests
from ledger.records.tool import ToolResult
from runners.workspace.store import EXECUTABLE
from tests.integration.runners.conftest import PYTEST, Play, Played

pytestmark = pytest.mark.engine

SMALL_OUTPUT = SandboxLimits(output_kb=1)


def failed(result: ToolResult) -> tuple[str, dict[str, Any]]:
    assert result.error is not None
    return result.error.code, result.data or {}


def shell(played: Played, command: str, **more: Any) -> ToolResult:
    return played.call("run_shell", command=command, **more)


# -- run_tests ------------------------------------------------------------------------------------------------------


def test_tests_are_counted_by_their_report(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    edits = [
        {
            "path": "tests/test_more.py",
            "version": "absent",
            "new": "from calc.sums import add\n\n\ndef test_add():\n    assert add(1, 1) == 2, 'no sum'\n",
        }
    ]
    assert played.call("apply_patch", edits=edits).ok
    head = played.job().head_tree
    seen = played.call("run_tests")
    assert seen.ok
    assert seen.data is not None
    counts = {name: seen.data[name] for name in ("passed_all", "exit_code", "discovered", "passed", "failed", "report")}
    assert counts == {"passed_all": False, "exit_code": 1, "discovered": 2, "passed": 1, "failed": 1, "report": "ok"}
    (failure,) = seen.data["failures"]
    assert (failure["id"], failure["outcome"]) == ("tests/test_more.py::test_add", "failed")
    assert "no sum" in failure["message"]
    assert b"1 failed, 1 passed" in get_object(played.database, seen.refs["output"])
    assert "1 failed, 1 passed" in seen.data["output_tail"]
    assert played.completions[-1].spent.sandbox_ms == seen.data["run_ms"] > 0
    assert played.job().head_tree == head
    (sandbox,) = job_sandboxes(played.database, played.job_id)
    assert sandbox.state == "removed"
    (told,) = [event.body for event in read_events(played.database, played.job_id) if "tests" in event.body]
    assert told["tests"] == {"passed": 1, "failed": 1, "skipped": 0}


def test_output_that_is_cut_names_the_limit_and_its_field(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(tests=Tests(command=("sh", "-c", f"{' '.join(PYTEST)}; seq 1000")), limits=SMALL_OUTPUT)
    seen = played.call("run_tests")
    assert seen.data is not None
    assert seen.truncated
    assert seen.data["output_remark"].endswith("more than the 1 KiB that are kept (limits.output_kb raises it)")


def test_a_whole_run_is_kept_as_evidence(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    assert played.call("run_tests").ok
    with played.database.transaction() as connection:
        (row,) = connection.execute("SELECT key FROM ledger.evidence").fetchall()
    run = find_evidence(played.database, row["key"])
    assert run is not None
    assert (run.tree, run.tests) == (played.job().head_tree, {"tests/test_sums.py::test_double": "passed"})


@pytest.mark.parametrize(
    ("command", "timeout", "code"),
    [
        (("no-such-program",), 20, "ENOCOMMAND"),
        (("sleep", "60"), 1, "ETIMEDOUT"),
        (("sh", "-c", "head -c 400m /dev/zero >/tmp/x"), 20, "EDISK"),
        (("yes",), 20, "ETOOBIG"),
        ((*PYTEST, "calc"), 20, "ENOTESTS"),
    ],
    ids=["no command", "too slow", "disk full", "flood", "no tests"],
)
def test_tests_that_can_not_be_run_say_why(
    play_in_sandbox: Play, command: tuple[str, ...], timeout: float, code: str
) -> None:
    played = play_in_sandbox(tests=Tests(command=command, timeout_seconds=timeout))
    seen_code, data = failed(played.call("run_tests"))
    assert seen_code == code
    assert data["passed_all"] is False
    assert ("ended_because" in data) == (data["ended"] != "exited")
    assert played.call("list_files").ok


def test_a_command_without_a_report_is_shown_as_such(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(tests=Tests(command=("sh", "-c", "echo done; exit 3")))
    seen = played.call("run_tests")
    assert seen.data is not None
    assert (seen.data["report"], seen.data["exit_code"], seen.data["output_tail"]) == ("missing", 3, "done\n")
    assert seen.data["report_remark"] == "no report was written"


# -- run_shell ------------------------------------------------------------------------------------------------------


def test_what_a_command_changes_becomes_the_tree(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    seen = shell(played, "echo new >'a b.txt'; rm README.md; chmod +x calc/sums.py; mkdir -p build x/__pycache__; "
                         "echo o >build/o; echo p >x/__pycache__/p.pyc; echo said; exit 3")  # fmt: skip
    assert seen.ok
    assert seen.data is not None
    assert (seen.data["exit_code"], seen.data["output_tail"]) == (3, "said\n")
    assert {row["path"]: row["change"] for row in seen.data["changed"]} == {
        "README.md": "deleted",
        "a b.txt": "added",
        "calc/sums.py": "modified",
    }
    assert played.content("a b.txt") == b"new\n"
    assert played.content("README.md") is None
    assert played.content("build/o") is None
    entry = played.store().entry(played.job().head_tree, "calc/sums.py")
    assert entry is not None
    assert entry.mode == EXECUTABLE
    assert get_object(played.database, seen.refs["output"]) == b"said\n"
    assert played.call("read_file", path="a b.txt").ok


def test_a_command_that_changes_nothing_moves_nothing(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    head = played.job().head_tree
    seen = shell(played, "cat README.md")
    assert seen.data is not None
    assert (seen.data["output_tail"], seen.data["files_changed"]) == ("calc\n", 0)
    assert played.job().head_tree == head


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("echo x >tests/test_sums.py", "EPERM"),
        ("mkdir -p .github && echo x >.github/ci.yml", "EAPPROVAL"),
        ("ln -s /etc/passwd link", "EPATH"),
        ("mkfifo pipe", "EPATH"),
        ("python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"", "EPATH"),
        ("head -c 400m /dev/zero >big", "EDISK"),
        ("yes", "ETOOBIG"),
    ],
)
def test_what_may_not_be_left_is_not_kept(play_in_sandbox: Play, command: str, code: str) -> None:
    played = play_in_sandbox(protected=("tests/**",))
    head = played.job().head_tree
    seen = shell(played, f"echo ok >fine.txt; {command}")
    assert failed(seen)[0] == code
    assert played.job().head_tree == head
    assert played.call("list_files").ok


def test_a_command_that_takes_too_long_leaves_nothing(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    head = played.job().head_tree
    code, data = failed(shell(played, "echo half >half.txt; echo begun; sleep 60", timeout_seconds=1))
    assert (code, data["output_tail"]) == ("ETIMEDOUT", "begun\n")
    assert played.job().head_tree == head
    assert played.completions[-1].end is None


def test_a_command_cut_short_by_the_budget_ends_the_job(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(budget=Budget(sandbox_seconds=2))
    seen = shell(played, "sleep 60")
    assert failed(seen)[0] == "EBUDGET"
    assert (played.job().state, played.job().reason) == ("budget_exhausted", "budget:sandbox_ms")


def test_a_command_cut_short_by_the_deadline_ends_the_job(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(budget=Budget(wall_seconds=10))
    assert failed(shell(played, "sleep 60"))[0] == "EBUDGET"
    assert played.job().reason == "budget:deadline"


def test_an_image_that_is_not_there_ends_the_job(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(image="sha256:" + "b" * 64)
    shell_call = played.decide("run_shell", {"command": "true"})
    assert shell_call.queue == "sandbox"
    assert played.work().end == "image_unavailable"
    assert (played.job().state, played.job().reason) == ("failed", "image_unavailable")


def test_limits_of_the_job_hold_in_its_sandboxes(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(limits=SandboxLimits(memory_mb=64, output_kb=1))
    seen = shell(played, "python3 -c 'x = bytearray(200 << 20)' || echo failed; seq 1000")
    assert seen.data is not None
    assert seen.data["output_bytes"] > 1_024
    assert "left out" in get_object(played.database, seen.refs["output"]).decode()


def test_limits_that_can_not_be_granted_are_nobody_s_to_mend(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(limits=SandboxLimits(memory_mb=1))
    assert failed(shell(played, "true"))[0] == "EISOLATION"
