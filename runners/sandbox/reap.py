"""Finding the sandboxes that nobody answers for any more, and proving that they are dead.

Labels say whose a sandbox is; whether that one still lives is the ledger's word, which the caller brings. A step is not
tried again, and a job is not verified, before `prove_death` has returned for it.
"""

from __future__ import annotations

from collections.abc import Container

from ledger.errors import Temporary
from runners.sandbox.backend import Backend, Evidence, FoundSandbox


class StillAlive(Temporary):
    """A sandbox was killed and removed, and is still there."""


def prove_death(backend: Backend, step_id: int, *, below_fence: int | None = None) -> list[Evidence]:
    """Kill and remove every sandbox of a step, or only those under a fence below `below_fence`; one proof for each.

    Raises StillAlive, EngineUnavailable.
    """
    found = backend.find(step_id=step_id)
    return _destroy(backend, [one for one in found if below_fence is None or one.fence < below_fence])


def leftovers(backend: Backend, live: Container[tuple[int, int]]) -> list[FoundSandbox]:
    """The sandboxes whose (step, fence) is not in `live`, the leases that are held now."""
    return [one for one in backend.find() if (one.step_id, one.fence) not in live]


def reap(backend: Backend, live: Container[tuple[int, int]]) -> list[Evidence]:
    """Kill and remove the leftovers; one proof for each. Raises StillAlive, EngineUnavailable."""
    return _destroy(backend, leftovers(backend, live))


def _destroy(backend: Backend, found: list[FoundSandbox]) -> list[Evidence]:
    proofs = [backend.destroy(one) for one in found]
    if alive := [proof.sandbox for proof in proofs if not proof.gone]:
        raise StillAlive(f"still there after its removal: {', '.join(alive)}", 5.0)
    return proofs
