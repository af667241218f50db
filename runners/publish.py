"""The publish step: a verified tree becomes a patch in the ledger, under an intent and with a receipt.

The patch is a function of the base and the tree, so doing it again gives the same bytes under the same name; the
verdict that allows it must be of this very tree. If the tree moved since, it is verified again rather than published.
"""

from __future__ import annotations

from ledger.actions import action_id_of, intend
from ledger.faults import crash_point
from ledger.reads import verdict_of
from ledger.records.base import sha256_hex
from ledger.records.step import Claim, Completion, Event, NewObject, NextStep
from runners.ends import step_work
from runners.runner import Runner
from runners.workspace.diff import changed_paths, patch_bytes

PUBLISH = "publish"


@step_work
def publish(claim: Claim, runner: Runner) -> Completion:
    """Keeps the patch of the verified head and ends the job as verified. Raises LeaseLost and Temporary errors."""
    verdict = verdict_of(runner.db, claim.job_id)
    if not (verdict.get("ok") and verdict.get("on") == "head" and verdict.get("tree") == claim.head_tree):
        return _verify_again(claim, verdict.get("tree"))
    store = runner.workspace(claim)
    patch = patch_bytes(store, claim.job.base_tree, claim.head_tree)
    files_changed = len(changed_paths(store, claim.job.base_tree, claim.head_tree))
    what = {"to": claim.job.publish.to, "sha256": sha256_hex(patch)}
    action_id = action_id_of(claim, PUBLISH, what)
    intend(
        runner.db,
        claim,
        action_id=action_id,
        tool=PUBLISH,
        arguments=what,
        effect="external",
        before_tree=claim.head_tree,
        after_tree=claim.head_tree,
    )
    crash_point("publish.after_intent")
    receipt = {**what, "bytes": len(patch), "files_changed": files_changed, "tree": claim.head_tree}
    completion = Completion(
        result=receipt,
        end="verified",
        objects=(NewObject(kind="patch", data=patch),),
        events=(Event(kind="published", body=receipt),),
        action_id=action_id,
        receipt=receipt,
        patch_sha256=what["sha256"],
        files_changed=files_changed,
    )
    crash_point("publish.after_effect")
    return completion


def _verify_again(claim: Claim, verified: object) -> Completion:
    body = {"head": claim.head_tree, "verified": verified}
    return Completion(
        result=body,
        next=NextStep(kind="verify", input={"on": "head"}),
        job_state="verifying",
        events=(Event(kind="verdict_void", body=body),),
    )
