"""Before a step is tried again, and before a job is verified: whatever an earlier attempt left running is dead.

A worker can die between any two lines, so the ledger knows of sandboxes whose end nobody saw. Each is looked for on its
engine, killed, and looked for again; what was seen is written down, and only then does work go on. A sandbox on an
engine that we can't ask is not proved dead by our not seeing it: the step is given back for a worker that can.
"""

from __future__ import annotations

from ledger.errors import Temporary
from ledger.records.step import Claim
from ledger.sandboxes import live_sandboxes, mark_sandbox
from runners.runner import Runner
from runners.sandbox.reap import prove_death

RETRY_SECONDS = 5.0


class DeathNotProved(Temporary):
    """A sandbox of an earlier attempt may still be running."""


def take_over(claim: Claim, runner: Runner) -> None:
    """Kills and proves the death of what earlier attempts of this step left; for `verify`, of the whole job.

    Raises DeathNotProved, StillAlive, EngineUnavailable.
    """
    if claim.kind == "verify":
        left = live_sandboxes(runner.db, job_id=claim.job_id)
    elif claim.attempt > 1:
        left = live_sandboxes(runner.db, step_id=claim.step_id)
    else:
        return
    for row in left:
        if row.engine_host != runner.engine_host:
            raise DeathNotProved(f"the sandbox {row.name} is on the engine {row.engine_host}", RETRY_SECONDS)
    for step_id in {row.step_id for row in left}:
        below_fence = claim.fence if step_id == claim.step_id else None
        proofs = {proof.sandbox: proof for proof in prove_death(runner.backend, step_id, below_fence=below_fence)}
        for row in left:
            if row.step_id == step_id:
                proof = proofs.get(row.name)
                seen = proof.plain() if proof else "not found on its engine"
                mark_sandbox(runner.db, row.name, "removed", {"taken_over_by": claim.step_id, "seen": seen})
