"""`cancel`: waits for the proof that nothing is left, shows it, or shows what is left."""

from __future__ import annotations

import threading
import time

import pytest

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.reads import find_job
from ledger.records.job import BatchSpec
from ledger.records.step import Completion
from ledger.sandboxes import mark_sandbox, register_sandbox
from ledger.steps import complete_step
from tests.fixtures.probes import IMAGE, good_probe
from tests.integration.cli.played import claim, play, spec, submit


def test_jobs_that_wait_are_cancelled_at_once(ledger, patchyard):
    submit(ledger, "b", spec("done"), spec("j1"), spec("j2"))
    play(ledger, "done")
    cancelled = patchyard("cancel", "b")
    assert cancelled.status == 0
    assert cancelled.out.splitlines()[0] == "b: 2 jobs cancelled, 1 had ended before"
    assert "nothing is left" in cancelled.out
    assert find_job(ledger, "b/j1").reason == "cancelled_by_user"
    assert find_job(ledger, "b/done").state == "completed"
    again = patchyard("cancel", "b", "--json").json
    assert (again["cancelled"], again["not_ended"], again["left"]) == (0, 0, [])


def test_one_job_of_a_batch(ledger, patchyard):
    submit(ledger, "b", spec("j1"), spec("j2"))
    assert patchyard("cancel", "b/j2").out.startswith("b/j2: 1 job cancelled")
    assert [find_job(ledger, f"b/{key}").state for key in ("j1", "j2")] == ["queued", "cancelled"]


def test_a_running_sandbox_is_waited_for_and_its_death_shown(ledger, patchyard, ledger_url):
    submit(ledger, "b", spec("j"))
    lease = claim(ledger, "j")
    register_sandbox(
        ledger,
        step_id=lease.step_id,
        fence=lease.fence,
        name="box-1",
        engine_host="here",
        image=IMAGE,
        probe_id=good_probe(ledger),
    )

    def worker() -> None:
        time.sleep(1)
        with Database(ledger_url) as own:
            mark_sandbox(own, "box-1", "removed", {"inspect": "no such container"})
            complete_step(own, lease, Completion(result={}, end="cancelled_by_user"))

    working = threading.Thread(target=worker)
    working.start()
    started = time.monotonic()
    cancelled = patchyard("cancel", "b")
    working.join()
    assert cancelled.status == 0
    assert time.monotonic() - started >= 1
    assert "gone: box-1 removed" in cancelled.out
    assert "no such container" in cancelled.out
    assert "all sandboxes (1) are proved dead" in cancelled.out
    again = patchyard("cancel", "b")
    assert again.out.splitlines()[0] == "b: 0 jobs cancelled, 1 had ended before"
    assert again.out.splitlines()[1:] == cancelled.out.splitlines()[1:]


def test_what_is_left_is_listed_when_the_proof_does_not_come(ledger, patchyard):
    submit(ledger, "b", spec("j"))
    lease = claim(ledger, "j")
    register_sandbox(
        ledger,
        step_id=lease.step_id,
        fence=lease.fence,
        name="box-2",
        engine_host="here",
        image=IMAGE,
        probe_id=good_probe(ledger),
    )
    mark_sandbox(ledger, "box-2", "running", {})
    cancelled = patchyard("cancel", "b", "--wait-seconds", "0.5")
    assert cancelled.status == 1
    assert "left: box-2 on here is running" in cancelled.out
    assert "1 job not ended, 1 sandbox not proved dead; the same command looks again" in cancelled.err
    row = patchyard("cancel", "b", "--wait-seconds", "0", "--json").json
    assert [sandbox["name"] for sandbox in row["left"]] == ["box-2"]


def test_a_number_that_is_a_batch_and_a_job_is_refused(ledger, patchyard):
    submit_batch(ledger, BatchSpec(name="b"), [spec("j")])
    assert find_job(ledger, "b/j").id == find_job(ledger, "b/j").batch_id == 1
    refused = patchyard("cancel", "1")
    assert refused.status == 2
    assert refused.err == "patchyard: 1 is the id of a batch and of a job; name the batch b, or the job b/j\n"
    assert find_job(ledger, "b/j").state == "queued"


@pytest.mark.parametrize("ref", ["b", "b/j"])
def test_who_cancelled_is_in_the_history(ledger, patchyard, ref):
    submit(ledger, "b", spec("j"))
    patchyard("cancel", ref)
    assert "@" in next(
        event for event in patchyard("trace", "b/j", "--json").out.splitlines() if "cancel_requested" in event
    )
