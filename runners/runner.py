"""What a worker gives to the work of a step: ledger, mirrors, sandboxes, bounds, a clock, and a way to be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ledger.connect import Database
from ledger.errors import DiskFull, PatchyardError, Permanent
from ledger.objects import get_object, packs_of
from ledger.records.budget import Amounts
from ledger.records.job import Reason
from ledger.records.step import Claim
from policy.network import NO_NETWORK, Ceiling
from runners.effects.credentials import Credentials
from runners.isolation import Isolation
from runners.sandbox.armoury import Armoury
from runners.sandbox.backend import Backend, EngineUnavailable, SandboxLost
from runners.tools.observed import ToolLimits
from runners.workspace.errors import ObjectUnreadable, PackRefused, RepoUnavailable
from runners.workspace.pack import add_pack
from runners.workspace.source import Mirrors
from runners.workspace.store import Store


class Stopped(Permanent):
    """The work was stopped from outside: the job was cancelled, the lease lost, or the worker has to end."""

    def __init__(self, spent: Amounts) -> None:
        """`spent` is what the step took until then; its sandbox is gone."""
        self.spent = spent
        super().__init__()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _nothing_to_bring(_digest: str) -> bool:
    return False


@dataclass(frozen=True)
class Runner:
    """Give each step a copy (`dataclasses.replace`) whose `cancelled` is set when that step has to stop.

    `engine_host` is the name of the backend's engine that its registry writes down. `restock` brings an image that the
    backend lacks and this machine has otherwise; whether it did. `network` is what jobs may have of one here. Without
    an `armoury` no sandbox is started ahead.
    """

    db: Database
    mirrors: Mirrors
    backend: Backend
    engine_host: str = "local"
    cancelled: threading.Event = field(default_factory=threading.Event)
    limits: ToolLimits = field(default_factory=ToolLimits)
    isolation: Isolation = field(default_factory=Isolation)
    credentials: Credentials | None = None
    armoury: Armoury | None = None
    restock: Callable[[str], bool] = _nothing_to_bring
    network: Ceiling = NO_NETWORK
    now: Callable[[], datetime] = _utc_now

    def workspace(self, claim: Claim) -> Store:
        """A store that holds the job's base and the agent's head tree.

        Raises RepoUnavailable, the BadInput errors of a source that is wrong, PackRefused, LedgerUnavailable.
        """
        store = self.mirrors.open(claim.job.source, claim.job.base_commit, self._object)
        if not store.has(claim.head_tree):
            for sha256 in packs_of(self.db, claim.agent_id):
                add_pack(store, self._object(sha256))
            if not store.has(claim.head_tree):
                raise PackRefused(f"the packs of agent {claim.agent_id} do not lead to its head {claim.head_tree}")
        return store

    def _object(self, sha256: str) -> bytes:
        return get_object(self.db, sha256)


def exhausted_reason(error: PatchyardError) -> Reason:
    """Why a job ends whose step failed with `error` at its last attempt."""
    if isinstance(error, RepoUnavailable | ObjectUnreadable):
        return "repo_unavailable"
    if isinstance(error, EngineUnavailable | SandboxLost | DiskFull):
        return "environment_failed"
    return "too_many_attempts"
