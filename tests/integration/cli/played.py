"""Jobs brought to their ends by the ledger's own functions, as workers would, without workers."""

from __future__ import annotations

from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.objects import put_object
from ledger.records.base import sha256_hex
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec, JobSpec, Tests
from ledger.records.source import SourceRef
from ledger.records.step import Claim, Completion, Event, NextStep
from ledger.records.verdict import IdCounts, TestRun, Verdict
from ledger.sandboxes import mark_sandbox, register_sandbox
from ledger.steps import claim_step, complete_step
from tests.fixtures.probes import IMAGE, good_probe

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
PATCH = b"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+caf\xc3\xa9\n"
VERIFY = NextStep(kind="verify", input={"on": "head"})
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]all tests passed[/red]\r\u202eevil"


def spec(key: str, **changes: object) -> JobSpec:
    """A job that no worker will ever do."""
    values: dict[str, object] = {
        "key": key,
        "source": SourceRef(kind="git", location="/nowhere"),
        "base_commit": "1" * 40,
        "base_tree": TREE,
        "issue": "It is broken.",
        "image": "sha256:" + "a" * 64,
        "image_name": "sandbox-python",
        "model": "replay:replays/x.jsonl",
        "tests": Tests(command=("true",)),
    }
    return JobSpec.model_validate({**values, **changes})


def submit(db: Database, name: str, *jobs: JobSpec) -> int:
    """Submits and admits the jobs; gives the batch's id."""
    submitted = submit_batch(db, BatchSpec(name=name), jobs)
    admit_jobs(db, capacity=1000)
    return submitted.batch_id


def claim(db: Database, job_key: str) -> Claim:
    """The lease of the job's ready step."""
    claimed = claim_step(
        db, _ready(db, job_key), owner="w", lease_seconds=60, estimate=lambda _claim: Amounts(steps=1, sandbox_ms=1000)
    )
    assert claimed is not None
    return claimed


def _ready(db: Database, job_key: str) -> int:
    with db.transaction() as connection:
        row = connection.execute(
            "SELECT s.id FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id"
            " WHERE j.key = %s AND s.state = 'ready'",
            (job_key,),
        ).fetchone()
    assert row is not None
    return int(row["id"])


def decide(db: Database, key: str, result: dict[str, object], follows: NextStep, **more: object) -> None:
    """One turn of the model."""
    usage = {"input_tokens": 1000, "output_tokens": 50, "cost_microusd": 12_345}
    step = claim(db, key)
    complete_step(
        db,
        step,
        Completion(
            result={**result, "usage": usage},
            spent=Amounts(steps=1, **usage),
            next=follows,
            events=(Event(kind="decision", body=result),),
            **more,
        ),
    )


def play(db: Database, key: str, *, text: str = "thinking", output: str = "1 passed") -> None:
    """A job that completes: a plan, a call of run_tests with `output`, a final word, a verdict, a patch."""
    decide(db, key, {"kind": "plan", "text": text}, NextStep(kind="decide"))
    call = {"call_id": "call_2", "name": "run_tests", "arguments": {}}
    decide(db, key, {"kind": "tool", "tool": "run_tests", "call_id": "call_2"}, NextStep(kind="act", input=call))
    act = claim(db, key)
    register_sandbox(
        db,
        step_id=act.step_id,
        fence=act.fence,
        name=f"box-{key}",
        engine_host="here",
        image=IMAGE,
        probe_id=good_probe(db),
    )
    mark_sandbox(db, f"box-{key}", "removed", {"gone": True})
    data = {"output": output, "exit_code": 1, "ended": "exited", "passed": 71, "failed": 2, "skipped": 1}
    observed = {"call_id": "call_2", "ok": True, "data": data, "error": None, "truncated": False}
    spent = Amounts(tool_calls=1, sandbox_ms=900)
    complete_step(db, act, Completion(result=observed, spent=spent, next=NextStep(kind="decide")))
    decide(
        db, key, {"kind": "final", "text": text}, NextStep(kind="verify", input={"on": "head"}), job_state="verifying"
    )
    verify(db, key)


def verify(db: Database, key: str, *, ok: bool = True, patch: bytes = PATCH, why: str = "all is well") -> None:
    """The verdict on the head, and the end."""
    run = TestRun(
        evidence_key="k",
        tree=TREE,
        exit_code=0,
        ended="exited",
        output_truncated=False,
        report="ok",
        discovered=3,
        passed=3,
        reused=True,
        sandbox="py-7",
        ran_on="docker/runc",
    )
    verdict = Verdict(
        on="head",
        tree=TREE,
        ok=ok,
        reason="verified" if ok else "acceptance_failed",
        explanation=why,
        candidate=run,
        fail_to_pass=IdCounts(passed=2 if ok else 1, failed=0 if ok else 1, not_passed=() if ok else ("t::x",)),
        pass_to_pass=IdCounts(passed=1),
        files_changed=1,
    )
    step = claim(db, key)
    done = Completion(
        result=verdict.plain(),
        spent=Amounts(sandbox_ms=700),
        end=verdict.reason,
        verdict=verdict.plain(),
        patch_sha256=put_object(db, "patch", patch) if ok else None,
        published={"to": "patch", "ref": sha256_hex(patch), "url": None} if ok else None,
        files_changed=1 if ok else None,
    )
    complete_step(db, step, done)
