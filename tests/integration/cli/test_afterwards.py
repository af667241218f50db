"""What a person asks about jobs that have ended: audit, budget, retry, verify, replay, resolve."""

from __future__ import annotations

import json

import psycopg
import pytest

from ledger.actions import intend
from ledger.dispatch import admit_jobs
from ledger.objects import get_object
from ledger.reads import find_job, job_agents, job_steps
from ledger.records.step import Completion, NextStep
from ledger.steps import complete_step
from patchyard.replaying import first_difference, recorded_decisions, replayed_job, submit_replay
from tests.integration.cli.played import TREE, VERIFY, claim, decide, play, spec, submit, verify


def play_again(db, key, text="thinking"):
    """A second run of a job that completes, shorter than `play`."""
    decide(db, key, {"kind": "plan", "text": text}, NextStep(kind="decide"))
    decide(db, key, {"kind": "final", "text": text}, VERIFY, job_state="verifying")
    verify(db, key)


def test_books_in_order_exit_with_0_and_damage_with_1(ledger, patchyard, ledger_url):
    submit(ledger, "b", spec("j"))
    play(ledger, "j")
    assert patchyard("audit", "b").out == "b: 1 job audited, 0 findings\n"
    with psycopg.connect(ledger_url) as connection:
        connection.execute("UPDATE ledger.chains SET seq = seq + 1")
    damaged = patchyard("audit", "b/j", "--json")
    assert damaged.status == 1
    assert damaged.json["findings"][0]["finding"] == "event chain broken"
    assert "event chain broken" in patchyard("audit", "b").out


def test_the_account_of_a_job_and_of_a_batch(ledger, patchyard):
    submit(ledger, "b", spec("j"), spec("k"))
    play(ledger, "j")
    shown = patchyard("budget", "b/j")
    assert "cost_usd" in shown.out
    assert "cost_microusd" not in shown.out
    account = patchyard("budget", "b/j", "--json").json["agents"][0]["account"]
    assert account["granted"]["steps"] == account["spent"]["steps"] + account["free"]["steps"]
    assert account["granted"]["cost_microusd"] == 2_000_000, "for machines nothing is renamed"
    batch = patchyard("budget", "b", "--json").json
    assert batch["granted"]["steps"] == 80
    for resource, granted in batch["granted"].items():
        assert granted == sum(batch[part][resource] for part in ("spent", "held", "delegated", "free"))
    assert batch["spent"]["steps"] == account["spent"]["steps"]
    claim(ledger, "k")
    assert patchyard("budget", "b", "--json").json["held"]["steps"] == 1
    first, head, *_ = patchyard("budget", "b").out.splitlines()
    assert (first, head.split()) == ("b: 2 jobs", ["resource", "granted", "spent", "held", "delegated", "free"])


def test_only_the_chosen_jobs_start_anew(ledger, patchyard):
    submit(ledger, "b", spec("good"), spec("bad"), spec("waits"))
    play(ledger, "good")
    decide(ledger, "bad", {"kind": "final", "text": "x"}, VERIFY, job_state="verifying")
    verify(ledger, "bad", ok=False)
    assert patchyard("retry", "b", "--reason", "empty_patch").out.startswith("b: 0 jobs")
    assert patchyard("retry", "b", "--state", "failed", "--reason", "acceptance_failed", "--json").json == {
        "batch": "b",
        "retried": [find_job(ledger, "b/bad").id],
    }
    assert [find_job(ledger, f"b/{key}").state for key in ("good", "bad", "waits")] == ["completed", "queued", "queued"]
    for option, wrong in (("--state", "finished"), ("--reason", "bad luck")):
        refused = patchyard("retry", "b", option, wrong)
        assert refused.status == 2
        assert refused.err.startswith(f"patchyard: {option}: there is no '{wrong}'; use one of ")


def test_jobs_that_ran_out_go_on_with_more_and_the_others_are_named(ledger, patchyard):
    submit(ledger, "b", spec("steps"), spec("money"), spec("fine"))
    for key, end in (("steps", "budget:steps"), ("money", "budget:cost_microusd")):
        complete_step(ledger, claim(ledger, key), Completion(result={}, end=end))
    play(ledger, "fine")
    refused = patchyard("retry", "b", "--add-budget", "wall_seconds=5")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "they ran out of cost_usd, steps" in refused.err
    assert patchyard("retry", "b", "--state", "failed", "--add-budget", "steps=5").status == 2
    gone_on = patchyard("retry", "b", "--add-budget", "steps=5")
    assert gone_on.out.splitlines() == [
        "b: 1 job goes on from where it stood; follow with `patchyard watch b`",
        "money does not: it ran out of cost_usd, and none was added",
    ]
    assert find_job(ledger, "b/steps").state == "queued"
    assert job_agents(ledger, find_job(ledger, "b/steps").id)[0].account.granted.steps == 45
    more = patchyard("retry", "b", "--reason", "budget:cost_usd", "--add-budget", "cost_usd=1", "--json").json
    assert more == {"batch": "b", "continued": [find_job(ledger, "b/money").id], "short": {}}


def test_the_time_between_two_runs_is_no_waiting_in_the_queue(ledger, patchyard, ledger_url):
    submit(ledger, "b", spec("j"))
    complete_step(ledger, claim(ledger, "j"), Completion(result={}, end="budget:steps"))
    with psycopg.connect(ledger_url) as connection:
        connection.execute(
            "UPDATE ledger.jobs SET submitted_at = submitted_at - interval '1 week',"
            " started_at = started_at - interval '1 week', finished_at = finished_at - interval '1 week'"
        )
        connection.execute(
            "UPDATE ledger.steps SET created_at = created_at - interval '1 week',"
            " started_at = started_at - interval '1 week', finished_at = finished_at - interval '1 week'"
        )
    patchyard("retry", "b", "--add-budget", "steps=5")
    admit_jobs(ledger, capacity=10)
    play_again(ledger, "j")
    queued = patchyard("show", "b/j", "--json").json["seconds"]["queued"]
    assert queued < 24 * 3600
    row = json.loads(patchyard("results", "b", "--format", "jsonl").out)
    assert row["seconds"]["queued"] == pytest.approx(queued, abs=0.1)


def test_a_job_is_verified_again_without_its_agent(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    early = patchyard("verify", "b/j")
    assert (early.status, early.err.count("\n")) == (2, 1)
    play(ledger, "j")
    assert patchyard("verify", "b/j").status == 0
    assert job_steps(ledger, find_job(ledger, "b/j").id)[-1].input == {"on": "head", "fresh": True}
    admit_jobs(ledger, capacity=10)
    verify(ledger, "j")
    assert find_job(ledger, "b/j").state == "completed"


def test_a_replay_takes_the_recorded_decisions_and_finds_the_first_difference(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    assert patchyard("replay", "b/j").status == 2
    play(ledger, "j")
    original = find_job(ledger, "b/j")
    submitted = submit_replay(ledger, original)
    admit_jobs(ledger, capacity=10)
    again = replayed_job(ledger, submitted, "j")
    lines = [json.loads(line) for line in get_object(ledger, again.spec.replay_sha256).splitlines()]
    assert [next(iter(line.keys() & {"plan", "tool", "final"})) for line in lines] == ["plan", "tool", "final"]
    assert lines[0]["usage"]["cost_usd"] == pytest.approx(0.012345)
    play_again(ledger, "j")
    assert first_difference(ledger, original, replayed_job(ledger, submitted, "j")) is None
    other = submit_replay(ledger, original)
    admit_jobs(ledger, capacity=10)
    decide(ledger, "j", {"kind": "final", "text": "x"}, VERIFY, head_tree="2" * 40)
    verify(ledger, "j", ok=False)
    difference = first_difference(ledger, original, replayed_job(ledger, other, "j"))
    assert difference is not None
    assert (difference.at, difference.original, difference.replayed) == ("the number of changes of the tree", "0", "1")


def test_a_replay_takes_the_last_run_only(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    play(ledger, "j", text="first")
    patchyard("retry", "b", "--state", "completed")
    admit_jobs(ledger, capacity=10)
    play_again(ledger, "j", text="second")
    submitted = submit_replay(ledger, find_job(ledger, "b/j"))
    replay = get_object(ledger, replayed_job(ledger, submitted, "j").spec.replay_sha256)
    assert b"second" in replay
    assert b"first" not in replay
    with pytest.raises(Exception, match="no recorded decisions"):
        recorded_decisions([])


def test_an_uncertain_effect_is_shown_and_resolved_once(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    step = claim(ledger, "j")
    intend(ledger, step, action_id="abc123", tool="push", arguments={"ref": "x"}, effect="external", before_tree=TREE)
    end = Completion(
        result={}, end="effect_uncertain", action_id="abc123", action_state="uncertain", receipt={"found": "elsewhere"}
    )
    complete_step(ledger, step, end)
    assert "uncertain effect" in patchyard("audit", "b").out
    shown = patchyard("resolve", "abc")
    assert shown.status == 0
    assert "found found: elsewhere" in shown.out
    assert "say --as done or --as not-done" in shown.out
    assert "uncertain: push; `patchyard resolve abc123` shows it" in patchyard("show", "b/j").out
    [action] = json.loads(patchyard("show", "b/j", "--json").out)["actions"]
    assert (action["action_id"], action["state"]) == ("abc123", "uncertain")
    assert patchyard("resolve", "abc", "--as", "done").status == 0
    assert find_job(ledger, "b/j").state == "queued"
    assert "uncertain:" not in patchyard("show", "b/j").out
    again = patchyard("resolve", "abc", "--as", "not-done")
    assert (again.status, "is done, not uncertain" in again.err) == (2, True)
    assert patchyard("resolve", "zzz").status == 2


def test_a_retry_of_a_job_that_goes_on_changes_nothing(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    decide(ledger, "j", {"kind": "plan", "text": "x"}, NextStep(kind="decide"))
    assert patchyard("retry", "b").out.startswith("b: 0 jobs")
    assert job_agents(ledger, find_job(ledger, "b/j").id)[0].account.spent.steps == 1
