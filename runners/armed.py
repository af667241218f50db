"""When a step has ended, a sandbox is started for the job's next command, and removed when none will come.

It saves time and changes nothing else: the command will see the same files, have the same bounds, and need the same
proof of isolation, which the ledger asks for again before the command is sent.
"""

from __future__ import annotations

from ledger.errors import PatchyardError
from ledger.records.step import Claim, Completion
from runners.command import job_limits
from runners.runner import Runner
from runners.sandbox.spec import SandboxPlace
from runners.workspace.stream import tar_chunks


def arm_next(claim: Claim, runner: Runner, completion: Completion) -> None:
    """Before a step is completed: starts a sandbox for what comes next, or removes the one that is needed no more."""
    armoury, follows = runner.armoury, completion.next
    if armoury is None:
        return
    if completion.end is not None or follows is None or follows.kind not in ("decide", "verify"):
        armoury.forget(claim.job_id)
        runner.backend.settle()  # before the job ends, nothing is left of any of its sandboxes
        return
    if claim.job.tests is None and claim.job.acceptance is None:
        return
    if claim.job.network is not None:
        return  # a way out is opened for one command, and for none that may come
    try:
        place = _place(claim, runner)
        if place is None:
            return
        tree = completion.head_tree or claim.head_tree
        store = runner.workspace(claim)
    except PatchyardError:
        return  # the step was done; what is wrong shows when something needs it
    armoury.arm(place, tree, lambda: tar_chunks(store, tree))


def _place(claim: Claim, runner: Runner) -> SandboxPlace | None:
    """None without proof of isolation: nobody waits for a sandbox yet, so nobody probes."""
    probe_id = runner.isolation.proved(runner.db, runner.backend, claim.job.image)
    if probe_id is None:
        return None
    return SandboxPlace(
        image=claim.job.image,
        limits=job_limits(claim),
        job_id=claim.job_id,
        step_id=claim.step_id,
        fence=claim.fence,
        probe_id=probe_id,
    )
