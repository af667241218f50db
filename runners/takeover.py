"""Before a step is tried again, and before a job is verified: whatever an earlier attempt left running is dead.

A worker can die between any two lines, so the ledger knows of sandboxes whose end nobody saw. Each is looked for on its
engine by its name, killed, and looked for again; what was seen is written down, and only then does work go on. A
sandbox on an engine that we can't ask is not proved dead by our not seeing it: the step is given back for a worker that
can.
"""

from __future__ import annotations

from ledger.errors import Temporary
from ledger.records.step import Claim
from ledger.sandboxes import SandboxRow, live_sandboxes, mark_sandbox
from runners.runner import Runner

RETRY_SECONDS = 5.0


class DeathNotProved(Temporary):
    """A sandbox of an earlier attempt may still be running."""


def take_over(claim: Claim, runner: Runner) -> None:
    """Kills and proves the death of what earlier attempts of this step left; for `verify`, of the whole job.

    What has `exited` is dead, and in what waits for its first command nothing of the job has run. It stays if it is
    ours: it may be what this step is about to use.

    Raises DeathNotProved, EngineUnavailable.
    """
    if claim.kind == "verify":
        left = live_sandboxes(runner.db, job_id=claim.job_id)
    elif claim.attempt > 1:
        left = live_sandboxes(runner.db, step_id=claim.step_id)
    else:
        return
    for row in left:
        if row.step_id == claim.step_id or not _is_harmless(runner, row):
            _prove_death(claim, runner, row)


def _is_harmless(runner: Runner, row: SandboxRow) -> bool:
    if not row.waits or not row.lease_live:
        return row.state == "exited"
    return row.engine_host != runner.engine_host or (runner.armoury is not None and runner.armoury.has(row.name))


def _prove_death(claim: Claim, runner: Runner, row: SandboxRow) -> None:
    """By name and not by step alone: an engine may serve several ledgers, whose steps have the same numbers."""
    if row.engine_host != runner.engine_host:
        raise DeathNotProved(f"the sandbox {row.name} is on the engine {row.engine_host}", RETRY_SECONDS)
    found = runner.backend.find(name=row.name)
    proofs = [runner.backend.destroy(sandbox) for sandbox in found]
    if not all(proof.gone for proof in proofs):
        raise DeathNotProved(f"the sandbox {row.name} is still there after its removal", RETRY_SECONDS)
    seen = proofs[0].plain() if proofs else "not found on its engine"
    mark_sandbox(runner.db, row.name, "removed", {"taken_over_by": claim.step_id, "seen": seen})
