"""The publish step: a verified tree becomes a patch in the ledger and, where the job asks, a branch or a request.

The patch is a function of the base and the tree, so doing it again gives the same bytes under the same name. What goes
to a remote goes by `runners.effects`: an intent before, a look at the world, one write, a receipt after. The verdict
that allows it must be of this very tree; if the tree moved since, it is verified again rather than published.
"""

from __future__ import annotations

from typing import Any

from ledger.actions import action_id_of, intend
from ledger.connect import ActionConflict
from ledger.faults import crash_point
from ledger.objects import MAX_OBJECT_BYTES
from ledger.reads import verdict_of
from ledger.records.base import sha256_hex
from ledger.records.step import Claim, Completion, Event, NewObject, NextStep
from runners.effects.book import StepBook
from runners.effects.credentials import Credentials
from runners.effects.effect import Receipt
from runners.effects.errors import EffectRefused, EffectUncertain
from runners.effects.pace import LedgerGate
from runners.effects.publication import Publication, Publisher
from runners.ends import ended, step_work
from runners.runner import Runner
from runners.workspace.diff import PatchTooBig, changed_paths, patch_bytes
from runners.workspace.store import Store

PUBLISH = "publish"


@step_work
def publish(claim: Claim, runner: Runner) -> Completion:
    """Keeps the patch of the verified head, publishes it, and ends the job as verified.

    Raises LeaseLost, and Temporary errors: `NotMyTurn` and `RateLimited` are the forge's turn to wait for.
    """
    verdict = verdict_of(runner.db, claim.job_id)
    if not (verdict.get("ok") and verdict.get("on") == "head" and verdict.get("tree") == claim.head_tree):
        return _verify_again(claim, verdict.get("tree"))
    store = runner.workspace(claim)
    try:
        patch = patch_bytes(store, claim.job.base_tree, claim.head_tree, max_bytes=MAX_OBJECT_BYTES)
    except PatchTooBig as too_big:
        return ended("publish_refused", f"{too_big.message}, and no more is kept")
    kept = {"sha256": sha256_hex(patch), "bytes": len(patch), "tree": claim.head_tree}
    if claim.job.publish.to == "patch":
        return _patch_only(claim, runner, store, patch, kept)
    try:
        receipt = _to_the_remote(claim, runner, store)
    except (EffectUncertain, ActionConflict) as unknown:
        return ended("effect_uncertain", unknown.message)
    except EffectRefused as refusal:
        return ended("publish_refused", refusal.message)
    published = {"to": claim.job.publish.to, **receipt.plain()}
    return _published(claim, store, patch, {**kept, **published}, published)


def _patch_only(claim: Claim, runner: Runner, store: Store, patch: bytes, kept: dict[str, Any]) -> Completion:
    what = {"to": "patch", "sha256": kept["sha256"]}
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
    receipt = {**what, **kept}
    completion = _published(claim, store, patch, receipt, {"to": "patch", "ref": kept["sha256"], "url": None})
    crash_point("publish.after_effect")
    return completion.model_copy(update={"action_id": action_id, "receipt": receipt})


def _to_the_remote(claim: Claim, runner: Runner, store: Store) -> Receipt:
    publication = Publication(
        publish=claim.job.publish,
        batch=claim.batch_name,
        job=claim.job.key,
        issue=claim.job.issue,
        tree=claim.head_tree,
        base_commit=claim.job.base_commit,
        at=claim.submitted_at,
    )
    publisher = Publisher(runner.credentials or Credentials(), LedgerGate(runner.db))
    return publisher.publish(publication, store, StepBook(runner.db, claim))


def _published(claim: Claim, store: Store, patch: bytes, told: dict[str, Any], published: dict[str, Any]) -> Completion:
    files_changed = len(changed_paths(store, claim.job.base_tree, claim.head_tree))
    result = {**told, "files_changed": files_changed}
    return Completion(
        result=result,
        end="verified",
        objects=(NewObject(kind="patch", data=patch),),
        events=(Event(kind="published", body=result),),
        patch_sha256=told["sha256"],
        published=published,
        files_changed=files_changed,
    )


def _verify_again(claim: Claim, verified: object) -> Completion:
    body = {"head": claim.head_tree, "verified": verified}
    return Completion(
        result=body,
        next=NextStep(kind="verify", input={"on": "head"}),
        job_state="verifying",
        events=(Event(kind="verdict_void", body=body),),
    )
