"""Verification on a real engine: every reason, the evidence that is reused, and the patch that comes out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ledger.events import read_events
from ledger.objects import get_object
from ledger.reads import job_sandboxes
from ledger.records.base import sha256_hex
from ledger.records.budget import Amounts, Budget
from ledger.records.job import Acceptance, Reason, Tests
from ledger.records.step import Completion, NewObject, NextStep
from ledger.records.verdict import Verdict
from ledger.steps import complete_step
from runners.runner import Runner
from runners.workspace.overlay import overlay_tar
from runners.workspace.pack import pack_between
from runners.workspace.store import FILE, Change
from tests.integration.runners.conftest import PYTEST, Play, Played, Repository, git

FIX = {"path": "calc/sums.py", "version": "@calc/sums.py", "old": "a - b", "new": "a + b"}
HIDDEN = """import pytest
from calc.sums import add, double


@pytest.mark.parametrize("n", [1, 2])
def test_add(n):
    assert add(n, n) == 2 * n


class TestOld:
    def test_double(self):
        assert double(3) == 6
"""
ADD_IDS = ("tests/test_hidden.py::test_add[1]", "tests/test_hidden.py::test_add[2]")
OLD_ID = "tests/test_hidden.py::TestOld::test_double"


def hidden(tmp_path: Path, files: dict[str, str] | None = None) -> bytes:
    folder = tmp_path / "acceptance"
    for name, text in (files or {"tests/test_hidden.py": HIDDEN}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return overlay_tar(folder)


def acceptance(files: bytes | None, **changes: Any) -> Acceptance:
    values: dict[str, Any] = {
        "files_sha256": sha256_hex(files) if files is not None else None,
        "command": (*PYTEST, "tests/test_hidden.py"),
        "fail_to_pass": ADD_IDS,
        "pass_to_pass": (OLD_ID,),
    }
    return Acceptance.model_validate({**values, **changes})


def with_acceptance(play: Play, tmp_path: Path, files: dict[str, str] | None = None, **changes: Any) -> Played:
    tar = hidden(tmp_path, files)
    options = {name: changes.pop(name) for name in list(changes) if name in Acceptance.model_fields}
    return play(objects=(tar,), acceptance=acceptance(tar, **options), **changes)


def verdict_of(completion: Completion) -> Verdict:
    return Verdict.model_validate(completion.result)


def ended(played: Played, completion: Completion, reason: Reason) -> Verdict:
    """The verdict of a job that failed for `reason`."""
    verdict = verdict_of(completion)
    assert (verdict.ok, verdict.reason, completion.end) == (False, reason, reason), verdict.explanation
    assert (played.job().state, played.job().reason) == ("failed", reason)
    assert played.job().verdict == completion.result
    return verdict


# -- the whole way --------------------------------------------------------------------------------------------------


def test_red_on_the_base_then_green_on_the_head_then_a_patch_that_applies(
    play_in_sandbox: Play, tmp_path: Path, repository: Repository
) -> None:
    played = with_acceptance(play_in_sandbox, tmp_path)
    base = played.work()
    shown = verdict_of(base)
    assert (shown.on, shown.ok, shown.tree) == ("base", True, repository.tree)
    assert shown.fail_to_pass is not None
    assert (shown.fail_to_pass.passed, shown.fail_to_pass.not_passed) == (0, ADD_IDS)
    assert "red on the base: 2 tests" in shown.explanation
    assert played.job().verdict is None
    assert played.call("apply_patch", edits=[FIX]).ok
    assert played.call("run_tests").ok
    played.final()
    assert played.job().state == "verifying"
    head = played.work()
    verdict = verdict_of(head)
    assert verdict.ok, verdict.explanation
    assert verdict.tree == played.job().head_tree
    assert verdict.candidate is not None
    assert verdict.acceptance is not None
    assert (verdict.candidate.reused, verdict.acceptance.reused) == (True, False)
    assert verdict.acceptance.tests == dict.fromkeys((*ADD_IDS, OLD_ID), "passed")
    assert verdict.explanation == "1 of the job's tests passed; 3 acceptance tests passed"
    assert played.job().state == "publishing"
    published = played.work()
    job = played.job()
    assert (job.state, job.reason, job.files_changed) == ("completed", "verified", 1)
    assert job.patch_sha256 == published.patch_sha256
    assert job.patch_sha256 is not None
    patch = get_object(played.database, job.patch_sha256)
    subprocess.run(["git", "-C", str(repository.path), "apply", "--index"], input=patch, check=True)
    assert git(repository.path, "write-tree") == job.head_tree
    kinds = [event.kind for event in read_events(played.database, played.job_id)]
    assert kinds.count("verification") == 2
    assert kinds.count("published") == 1
    assert {row.state for row in job_sandboxes(played.database, played.job_id)} == {"removed"}
    assert len(job_sandboxes(played.database, played.job_id)) == 3


def test_what_was_run_once_is_not_run_again_by_another_job(play_in_sandbox: Play, tmp_path: Path) -> None:
    first = with_acceptance(play_in_sandbox, tmp_path)
    first.work()
    again = with_acceptance(play_in_sandbox, tmp_path)
    completion = again.work()
    verdict = verdict_of(completion)
    assert verdict.ok
    assert verdict.acceptance is not None
    assert verdict.acceptance.reused
    assert completion.spent == Amounts()
    assert job_sandboxes(again.database, again.job_id) == []
    other = with_acceptance(play_in_sandbox, tmp_path, timeout_seconds=61)
    other.work()
    assert len(job_sandboxes(other.database, other.job_id)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="the oci backend needs root")
def test_a_run_on_one_runtime_is_no_evidence_for_another(
    play_in_sandbox: Play, oci_runner: Runner, tmp_path: Path
) -> None:
    with_acceptance(play_in_sandbox, tmp_path).work()
    elsewhere = with_acceptance(play_in_sandbox, tmp_path, using=oci_runner)
    verdict = verdict_of(elsewhere.work())
    assert verdict.acceptance is not None
    assert (verdict.ok, verdict.acceptance.reused, verdict.acceptance.ran_on) == (True, False, "oci/crun")
    there_again = verdict_of(with_acceptance(play_in_sandbox, tmp_path, using=oci_runner).work())
    assert there_again.acceptance is not None
    assert there_again.acceptance.reused


# -- on the base ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fail_to_pass": (OLD_ID,), "pass_to_pass": ()}, "passed without any change"),
        ({"pass_to_pass": (ADD_IDS[0],)}, "did not pass on the base"),
        ({"pass_to_pass": ("tests/test_hidden.py::test_gone",)}, "did not pass on the base"),
        ({"command": ("no-such-program",)}, "not in the sandbox image"),
        ({"command": ("true",)}, "report is missing"),
        ({"command": ("sh", "-c", "echo '<x>' >/tmp/report.xml")}, "report is malformed"),
        ({"command": ("sleep", "60"), "timeout_seconds": 1}, "timed out"),
        ({"command": (*PYTEST, "tests/test_sums.py"), "pass_to_pass": ()}, "nothing failed to explain it"),
        ({"report": "relative.xml"}, "reports"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_environment_that_is_not_red_is_at_fault(
    play_in_sandbox: Play, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    played = with_acceptance(play_in_sandbox, tmp_path, **changes)
    verdict = ended(played, played.work(), "environment_failed")
    assert why in verdict.explanation
    assert verdict.on == "base"


TYPO = "tests/test_hidden.py::test_ad[1]"
NEAR = f"{TYPO} (not in the report; nearest is {ADD_IDS[0]})"


def test_an_id_that_no_test_has_is_told_with_the_nearest_one(play_in_sandbox: Play, tmp_path: Path) -> None:
    played = with_acceptance(play_in_sandbox, tmp_path, fail_to_pass=(TYPO,))
    base = verdict_of(played.work())
    assert base.ok, "another test is red, so it could be one that cannot be collected"
    counted = f"{NEAR} could not be collected, which counts as red"
    assert base.explanation == f"red on the base: 1 test did not pass; {counted}"
    head = ended(played, finished(played, FIX), "acceptance_failed")
    assert head.explanation == f"did not pass: {NEAR}"


def test_an_id_that_no_test_has_is_told_on_the_base_where_nothing_fails(play_in_sandbox: Play, tmp_path: Path) -> None:
    green = {"tests/test_hidden.py": HIDDEN.replace("2 * n", "add(n, n)")}
    played = with_acceptance(play_in_sandbox, tmp_path, files=green, fail_to_pass=(TYPO,))
    verdict = ended(played, played.work(), "environment_failed")
    assert verdict.explanation == f"{NEAR} did not run on the base, and nothing failed to explain it"
    kept = with_acceptance(play_in_sandbox, tmp_path, pass_to_pass=("tests/test_hidden.py::TestOld::test_dubble",))
    verdict = ended(kept, kept.work(), "environment_failed")
    assert verdict.explanation.endswith(f"test_dubble (not in the report; nearest is {OLD_ID})")


def test_ids_that_are_green_on_the_base_are_told_where_they_belong(play_in_sandbox: Play, tmp_path: Path) -> None:
    played = with_acceptance(play_in_sandbox, tmp_path, fail_to_pass=(ADD_IDS[0], OLD_ID), pass_to_pass=())
    verdict = ended(played, played.work(), "environment_failed")
    assert verdict.explanation == (
        f"not red on the base: {OLD_ID} passed without any change; what passes already belongs in pass_to_pass"
    )


def test_a_test_that_can_not_be_imported_on_the_base_is_red(play_in_sandbox: Play, tmp_path: Path) -> None:
    files = {
        "tests/test_hidden.py": "from calc.more import triple\n\n\ndef test_triple():\n    assert triple(1) == 3\n"
    }
    wanted = ("tests/test_hidden.py::test_triple",)
    played = with_acceptance(play_in_sandbox, tmp_path, files, fail_to_pass=wanted, pass_to_pass=())
    verdict = verdict_of(played.work())
    assert verdict.ok
    assert "could not be collected, which counts as red" in verdict.explanation
    assert played.claim().kind == "decide"


def test_acceptance_files_that_are_gone_are_the_environment_s_fault(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(acceptance=acceptance(b"never stored"))
    assert "acceptance files" in ended(played, played.work(), "environment_failed").explanation


def test_an_image_that_is_gone_is_no_verdict(play_in_sandbox: Play, tmp_path: Path) -> None:
    played = with_acceptance(play_in_sandbox, tmp_path, image="sha256:" + "b" * 64)
    assert played.work().end == "image_unavailable"
    assert played.job().verdict is None


# -- on the head ----------------------------------------------------------------------------------------------------


def finished(played: Played, *edits: dict[str, Any]) -> Completion:
    """The model makes its edits and says that it is done; the verification follows."""
    for edit in edits:
        assert played.call("apply_patch", edits=[edit]).ok
    played.final()
    return played.work()


def test_a_patch_that_passes_the_visible_tests_only_is_not_accepted(play_in_sandbox: Play, tmp_path: Path) -> None:
    played = with_acceptance(play_in_sandbox, tmp_path, red_on_base=False)
    wrong = {**FIX, "new": "2 if a == 1 else 5"}
    verdict = ended(played, finished(played, wrong), "acceptance_failed")
    assert verdict.fail_to_pass is not None
    assert (verdict.fail_to_pass.passed, verdict.fail_to_pass.not_passed) == (1, ADD_IDS[1:])
    assert verdict.pass_to_pass is not None
    assert (verdict.pass_to_pass.passed, verdict.pass_to_pass.failed) == (1, 0)


def test_nothing_changed_is_an_empty_patch(play: Play) -> None:
    played = play()
    assert ended(played, finished(played), "empty_patch").files_changed == 0
    back_and_forth = play()
    there, back = {**FIX, "new": "a + b"}, {**FIX, "old": "a + b", "new": "a - b"}
    ended(back_and_forth, finished(back_and_forth, there, back), "empty_patch")


def test_a_protected_path_may_not_have_changed_by_whatever_way(play: Play) -> None:
    played = play(protected=("tests/**",))
    store, claim = played.store(), played.claim()
    head = store.with_changes(claim.head_tree, {"tests/test_sums.py": Change(FILE, b"")})  # past the rules of the tools
    moved = Completion(
        result={},
        next=NextStep(kind="verify", input={"on": "head"}),
        head_tree=head,
        objects=(NewObject(kind="pack", data=pack_between(store, claim.head_tree, head)),),
    )
    offer = complete_step(played.database, claim, moved)
    assert offer is not None
    played.offer = offer
    verdict = ended(played, played.work(), "protected_path_changed")
    assert verdict.protected_changed == ("tests/test_sums.py",)
    assert verdict.files_changed == 1


def test_a_verdict_says_which_tests_of_the_base_the_patch_changed(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    weaker = {"path": "tests/test_sums.py", "version": "@tests/test_sums.py", "old": "== 4", "new": ""}
    verdict = verdict_of(finished(played, FIX, weaker))
    assert verdict.ok
    assert verdict.explanation == "1 of the job's tests passed; the patch changes tests of the base: tests/test_sums.py"


def test_a_failure_that_the_report_does_not_show_is_not_overlooked(play_in_sandbox: Play, tmp_path: Path) -> None:
    command = ("sh", "-c", f"{' '.join(PYTEST)} tests/test_hidden.py; exit 1")
    played = with_acceptance(play_in_sandbox, tmp_path, command=command, red_on_base=False)
    why = "ended with 1, and its report shows no failure to explain it"
    assert why in ended(played, finished(played, FIX), "acceptance_failed").explanation


def test_acceptance_files_replace_whatever_the_agent_wrote_in_their_place(
    play_in_sandbox: Play, tmp_path: Path
) -> None:
    tar = hidden(tmp_path)
    played = play_in_sandbox(objects=(tar,), acceptance=acceptance(tar, red_on_base=False))
    lie = {"path": "tests/test_hidden.py", "version": "absent", "new": "def test_add():\n    pass\n"}
    harmless = {"path": "NOTES", "version": "absent", "new": "nothing\n"}
    verdict = ended(played, finished(played, harmless, lie), "acceptance_failed")
    assert verdict.fail_to_pass is not None
    assert verdict.fail_to_pass.failed > 0


@pytest.mark.parametrize(
    ("command", "reason", "why"),
    [
        ((*PYTEST, "calc"), "no_tests_ran", "found no tests"),
        ((*PYTEST, "--deselect", "tests"), "no_tests_ran", "found no tests"),
        (("sh", "-c", "exit 0"), "verification_failed", "report is missing"),
        (("sh", "-c", "exit 1"), "verification_failed", "report is missing"),
        (("sh", "-c", "ln -s /etc/passwd /tmp/report.xml"), "verification_failed", "report is missing"),
        (("sleep", "60"), "verification_failed", "timed out"),
        (("no-such-program",), "environment_failed", "not in the sandbox image"),
        (("sh", "-c", f"{' '.join(PYTEST)}; exit 4"), "verification_failed", "ended with 4"),
        (
            ("sh", "-c", f"{' '.join(PYTEST)}; head -c 3m /dev/zero"),
            "verification_failed",
            "more than the 1024 KiB that are kept (limits.output_kb raises it)",
        ),
        (("yes",), "verification_failed", "wrote more than 128 MiB of output and was killed"),
        (("sh", "-c", "kill -SEGV $$"), "verification_failed", "was ended by signal 11 (SIGSEGV)"),
        (
            ("python3", "-c", "x = bytearray(2 << 30)"),
            "verification_failed",
            "was killed for using more memory than 1024 MiB (limits.memory_mb)",
        ),
        (("sh", "-c", "head -c 400m /dev/zero >/tmp/x"), "verification_failed", "256 MiB of /tmp (limits.tmp_mb)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tests_that_did_not_run_well_verify_nothing(
    play_in_sandbox: Play, command: tuple[str, ...], reason: Reason, why: str
) -> None:
    played = play_in_sandbox(tests=Tests(command=command, timeout_seconds=8 if command[0] != "sleep" else 1))
    assert why in ended(played, finished(played, FIX), reason).explanation


def test_tests_that_fail_or_lie_verify_nothing(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    bad = {"path": "tests/test_bad.py", "version": "absent", "new": "def test_bad():\n    assert 0\n"}
    verdict = ended(played, finished(played, FIX, bad), "verification_failed")
    assert "tests/test_bad.py::test_bad" in verdict.explanation
    lie = play_in_sandbox(tests=Tests(command=("sh", "-c", f"{' '.join(PYTEST)}; exit 0")))
    assert "their report shows 1 failures" in ended(lie, finished(lie, FIX, bad), "verification_failed").explanation
    skip = {"path": "conftest.py", "version": "absent", "new": "collect_ignore = ['tests']\n"}
    hidden_away = play_in_sandbox(protected=("!conftest.py",))
    ended(hidden_away, finished(hidden_away, FIX, skip), "no_tests_ran")


def test_skipping_all_tests_is_running_none(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(protected=("!conftest.py",))
    skip = {
        "path": "conftest.py",
        "version": "absent",
        "new": "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n"
        "    for item in items:\n        item.add_marker(pytest.mark.skip)\n",
    }
    assert "skipped" in ended(played, finished(played, FIX, skip), "no_tests_ran").explanation


def test_a_job_without_any_tests_is_never_verified(play: Play) -> None:
    played = play(tests=None)
    ended(played, finished(played, FIX), "no_tests_ran")


def test_a_verification_that_the_budget_cuts_short_is_no_verdict(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(tests=Tests(command=("sleep", "60")), budget=Budget(sandbox_seconds=2))
    completion = finished(played, FIX)
    assert completion.end == "budget:sandbox_ms"
    assert (played.job().state, played.job().verdict) == ("budget_exhausted", None)
    assert completion.spent.sandbox_ms == 2_000


def test_verification_may_hold_what_exploration_may_not(play_in_sandbox: Play) -> None:
    played = play_in_sandbox(budget=Budget(sandbox_seconds=10))
    played.decide("run_tests", {})
    claim = played.claim()
    assert claim.held.sandbox_ms == 7_500
    played.work(claim)
    assert played.call("apply_patch", edits=[FIX]).ok
    played.final()
    assert played.claim().held.sandbox_ms > 7_500


# -- publication ----------------------------------------------------------------------------------------------------


def test_a_verdict_of_another_tree_publishes_nothing(play_in_sandbox: Play) -> None:
    played = play_in_sandbox()
    assert verdict_of(finished(played, FIX)).ok
    with played.database.transaction() as connection:
        other = played.job().spec.base_tree
        connection.execute("UPDATE ledger.agents SET head_tree = %s WHERE job_id = %s", [other, played.job_id])
    completion = played.work()
    assert completion.end is None
    assert (played.job().state, played.job().patch_sha256) == ("verifying", None)
    assert played.claim().kind == "verify"
