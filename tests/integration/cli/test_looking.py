"""The commands that look: what they print, in which shape, with which status, and what hostile text cannot do."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise

import pytest
from defusedxml import ElementTree

from tests.integration.cli.played import HOSTILE, PATCH, VERIFY, decide, play, spec, submit, verify

FORBIDDEN = ("\x1b", "\x07", "\r", "\u202e")


@pytest.fixture
def mixed(ledger):
    """A batch of three: one completed, one failed on acceptance, one waits."""
    submit(ledger, "mixed", spec("a-good"), spec("b-bad"), spec("c-waits"))
    play(ledger, "a-good")
    decide(ledger, "b-bad", {"kind": "final", "text": "done"}, VERIFY)
    verify(ledger, "b-bad", ok=False, why="t::x failed")
    return ledger


def test_list_and_status(mixed, patchyard):
    listed = patchyard("list")
    assert listed.status == 0
    assert "mixed" in listed.out
    assert "2/3" in listed.out
    (row,) = patchyard("list", "--json").json
    assert (row["name"], row["jobs"], row["finished"], row["states"]["completed"]) == ("mixed", 3, 2, 1)
    assert "mixed" in patchyard("status").out
    status = patchyard("status", "mixed")
    assert "acceptance_failed" in status.out
    assert "mixed: 2/3 ended (1 completed, 1 failed, 1 queued)" in status.out
    only = patchyard("status", "mixed", "--state", "failed", "--json").json["jobs_shown"]
    assert [job["job"] for job in only] == ["b-bad"]
    limited = patchyard("status", "mixed", "--limit", "1")
    assert "2 more jobs; --limit 3 shows all" in limited.err


def test_a_wrong_state_or_batch_or_job_is_one_line(mixed, patchyard):
    for arguments, said in (
        (("status", "mixed", "--state", "faild"), "--state: unknown state 'faild'; use one of queued"),
        (("status", "nosuch"), "there is no batch nosuch; `patchyard list` shows"),
        (("show", "mixed/none"), "there is no job mixed/none; "),
        (("patch", "9999"), "there is no job 9999; "),
        (("trace", "x/y/z"), "there is no job x/y/z; "),
        (("results", "nosuch"), "there is no batch nosuch"),
        (("cancel", "nosuch"), "there is no batch nosuch"),
        (("watch", "nosuch"), "there is no batch nosuch"),
    ):
        outcome = patchyard(*arguments)
        assert (outcome.status, outcome.out) == (2, "")
        assert said in outcome.err
        assert len(outcome.err.splitlines()) == 1


def test_show_tells_the_whole_job(mixed, patchyard):
    shown = patchyard("show", "mixed/a-good")
    assert shown.status == 0
    for said in ("completed, verified", "calls run_tests", "final: thinking", "It is broken."):
        assert said in shown.out
    assert "run_tests {} → 71 passed, 2 failed, 1 skipped" in shown.out
    again = "tests of the repository: not run again, the same run on this tree counts (py-7 docker/runc)"
    assert again in shown.out
    assert "fail_to_pass: 2 passed, 0 did not" in shown.out
    assert "sandboxes: 1 in all, 0 not proved dead" in shown.out
    row = patchyard("show", "mixed/a-good", "--json").json
    assert (row["batch"], row["job"], row["state"]) == ("mixed", "a-good", "completed")
    assert len(row["steps"]) == 5
    assert set(row["seconds"]) == {"queued", "deciding", "sandbox", "verifying"}
    assert row["agents"][0]["account"]["spent"]["cost_microusd"] == 3 * 12_345
    failed = patchyard("show", "mixed/b-bad")
    assert "did not pass: t::x" in failed.out


def test_trace_as_table_and_lines(mixed, patchyard):
    table = patchyard("trace", "mixed/a-good")
    assert "job_submitted" in table.out
    assert "job_ended" in table.out
    events = [json.loads(line) for line in patchyard("trace", "mixed/a-good", "--format", "jsonl").out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(before["hash"] == after["prev_hash"] for before, after in pairwise(events))
    assert [json.loads(line) for line in patchyard("trace", "mixed/a-good", "--json").out.splitlines()] == events


def test_patch_is_bytes_that_git_applies(mixed, patchyard, place):
    assert patchyard("patch", "mixed/a-good").out.encode("utf-8", "surrogateescape") == PATCH
    subprocess.run(["git", "apply", "--check"], input=PATCH, cwd=place / "repo", check=True)
    none = patchyard("patch", "mixed/b-bad")
    assert (none.status, none.out) == (1, "")
    assert none.err == "patchyard: mixed/b-bad has no verified patch: it is failed (acceptance_failed)\n"


RESULT_KEYS = [
    "batch", "job", "state", "reason", "verified", "base", "tree", "patch_sha256", "patch", "files_changed", "tests",
    "acceptance", "granted", "spent", "agents", "steps", "attempts", "submitted_at", "started_at", "finished_at",
    "seconds", "published",
]  # fmt: skip


def test_results_rows_have_the_promised_shape(mixed, patchyard):
    outcome = patchyard("results", "mixed", "--format", "jsonl")
    assert outcome.status == 1
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert all(list(row) == RESULT_KEYS for row in rows)
    good, bad, waits = rows
    assert good["patch"].encode() == PATCH
    assert good["verified"] is True
    assert good["tests"] == {"discovered": 3, "passed": 3, "failed": 0, "skipped": 0}
    assert good["acceptance"] == {
        "fail_to_pass": {"passed": 2, "failed": 0},
        "pass_to_pass": {"passed": 1, "failed": 0},
    }
    assert set(good["granted"]) == set(good["spent"]) >= {"steps", "cost_microusd", "sandbox_ms"}
    assert good["spent"]["steps"] == 3
    assert good["published"] == {"to": "patch", "ref": good["patch_sha256"], "url": None}
    assert (bad["state"], bad["reason"], bad["verified"], bad["patch"]) == ("failed", "acceptance_failed", False, None)
    assert (waits["state"], waits["reason"], waits["started_at"], waits["published"]) == ("queued", None, None, None)


def test_results_for_people_benchmarks_and_ci(mixed, patchyard):
    table = patchyard("results", "mixed")
    assert table.status == 1
    assert "acceptance_failed" in table.out
    assert "mixed: 2/3 ended (1 completed, 1 failed, 1 queued), $0." in table.out
    predictions = [
        json.loads(line) for line in patchyard("results", "mixed", "--format", "predictions").out.splitlines()
    ]
    assert [set(row) for row in predictions] == [{"instance_id", "model_name_or_path", "model_patch"}] * 3
    assert [row["model_patch"] for row in predictions] == [PATCH.decode(), "", ""]
    suites = ElementTree.fromstring(patchyard("results", "mixed", "--format", "junit").out.encode())
    (suite,) = suites
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3", "failures": "1", "errors": "0", "skipped": "1",
    }  # fmt: skip
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("a-good", []), ("b-bad", ["failure"]), ("c-waits", ["skipped"]),
    ]  # fmt: skip


def test_a_paused_batch_is_shown_as_one(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    assert patchyard("resume", "b").err == "patchyard: b is not paused; there is nothing to resume\n"
    assert patchyard("pause", "b").out == "b is paused, 0 agents still at work; `patchyard resume b` lets it go on\n"
    assert patchyard("pause", "b").out.startswith("b was paused already, ")
    assert "1 queued, paused" in patchyard("list").out
    assert "`patchyard resume b` lets it go on" in patchyard("status", "b").out.splitlines()[-1]
    assert patchyard("list", "--json").json[0]["paused_at"] is not None
    assert patchyard("resume", "b").out == "b goes on; follow with `patchyard watch b`\n"
    assert patchyard("list", "--json").json[0]["paused_at"] is None
    play(ledger, "j")
    over = patchyard("pause", "b")
    assert (over.status, over.err) == (2, "patchyard: b has ended; there is nothing to pause\n")
    assert patchyard("pause", "nosuch").status == 2


def test_two_forms_at_once_are_one_too_many(mixed, patchyard):
    refused = patchyard("results", "mixed", "--json", "--format", "junit")
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert refused.err.startswith("patchyard: --json: is the same as --format jsonl, not junit; give one")
    refused = patchyard("trace", "mixed/a-good", "--json", "--format", "atif")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == "patchyard: --json: is the same as --format jsonl, not atif; give one of the two\n"


def test_results_as_files(mixed, patchyard, place):
    outcome = patchyard("results", "mixed", "--out", "out", "--format", "jsonl")
    assert outcome.status == 1
    assert outcome.out == ""
    assert json.loads((place / "out/results.jsonl").read_text().splitlines()[0])["job"] == "a-good"
    assert (place / "out/patches/a-good.patch").read_bytes() == PATCH
    assert [file.name for file in (place / "out/patches").iterdir()] == ["a-good.patch"]


@pytest.mark.parametrize("command", ["results", "run"])
@pytest.mark.parametrize(
    ("out", "what"),
    [
        ("file", "file: is no folder; give a folder that can be written"),
        ("file/below", "file: is no folder; give a folder that can be written"),
        ("taken", "taken/patches: is no folder; give a folder that can be written"),
        ("odd", "odd/results.jsonl: is a folder; give a folder that can be written"),
        ("/proc/out", "/proc/out: no such file or directory; give a folder that can be written"),
    ],
)
def test_where_no_results_can_be_written_is_told_first(patchyard, place, monkeypatch, command, out, what):
    monkeypatch.setenv("PATCHYARD_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    (place / "file").write_text("")
    (place / "taken").mkdir()
    (place / "taken" / "patches").write_text("")
    (place / "odd" / "results.jsonl").mkdir(parents=True)
    refused = patchyard(command, "batch.yaml", "--out", out)
    assert (refused.status, refused.out, refused.err) == (2, "", f"patchyard: --out {what}\n")
    assert not (place / "home").exists()


def test_a_patch_that_is_no_text_is_carried_in_base64(ledger, patchyard):
    submit(ledger, "binary", spec("a"))
    decide(ledger, "a", {"kind": "final", "text": ""}, VERIFY)
    verify(ledger, "a", patch=b"+caf\xe9\n")
    (row,) = [json.loads(line) for line in patchyard("results", "binary", "--json").out.splitlines()]
    assert (row["patch"], row["patch_base64"]) == (None, "K2NhZukK")
    assert patchyard("patch", "binary/a").out.encode("utf-8", "surrogateescape") == b"+caf\xe9\n"
    predicted = patchyard("results", "binary", "--format", "predictions")
    assert predicted.json["model_patch"] == ""
    assert predicted.err == (
        "patchyard: binary/a is an empty prediction: its patch has lines that are no UTF-8, as a prediction must be; "
        "`patchyard patch binary/a` has it byte for byte\n"
    )


def test_hostile_text_reaches_no_terminal(ledger, patchyard):
    submit(ledger, "hostile", spec("h", issue=HOSTILE, model="replay:" + HOSTILE))
    play(ledger, "h", text=HOSTILE, output=HOSTILE)
    submit(ledger, "hostile2", spec("h2"))
    decide(ledger, "h2", {"kind": "final", "text": HOSTILE}, VERIFY)
    verify(ledger, "h2", ok=False, why=HOSTILE)
    for arguments in (
        ("show", "hostile/h"),
        ("trace", "hostile/h"),
        ("results", "hostile2"),
        ("results", "hostile2", "--format", "junit"),
        ("show", "hostile2/h2"),
        ("status", "hostile"),
        ("list",),
        ("show", HOSTILE),
        ("cancel", HOSTILE),
    ):
        outcome = patchyard(*arguments)
        assert not any(char in outcome.out + outcome.err for char in FORBIDDEN), arguments
    assert "[red]all tests passed[/red]" in patchyard("show", "hostile/h").out
