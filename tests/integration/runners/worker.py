"""A worker of one step, in a process of its own, so that it can be killed at a crash point."""

from __future__ import annotations

import sys
from pathlib import Path

from ledger.connect import Database
from ledger.faults import crash_point
from ledger.steps import claim_step, complete_step
from runners.act import act
from runners.publish import publish
from runners.registry import LedgerRegistry
from runners.runner import Runner
from runners.sandbox.docker import DockerBackend
from runners.spending import estimate
from runners.verify import verify
from runners.workspace.source import Mirrors


def main(url: str, home: str, engine: str, owner: str, step_id: str) -> None:
    """Claims the step, does it and completes it."""
    with Database(url) as database:
        backend = DockerBackend(engine, LedgerRegistry(database, "local"), owner=owner)
        runner = Runner(db=database, mirrors=Mirrors(Path(home)), backend=backend)
        claim = claim_step(database, int(step_id), owner="killed", lease_seconds=60, estimate=estimate)
        assert claim is not None
        crash_point("claim.after")
        work = {"act": act, "verify": verify, "publish": publish}[claim.kind]
        complete_step(database, claim, work(claim, runner))


if __name__ == "__main__":
    main(*sys.argv[1:])
