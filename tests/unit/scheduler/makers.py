"""Claims and models of known content for the scheduler's tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ledger.errors import Permanent
from ledger.records.base import sha256_hex
from ledger.records.budget import Amounts
from ledger.records.job import JobSpec
from ledger.records.source import SourceRef
from ledger.records.step import Claim
from scheduler.decide import Backoff, Decider
from scheduler.models.replay import ReplayModel

PLENTY = Amounts(steps=10, tool_calls=10, agents=1, input_tokens=10_000, output_tokens=10_000, cost_microusd=10**6)


def job_of(replay: bytes | None = None, **fields: Any) -> JobSpec:
    """A job whose model is the given replay."""
    values: dict[str, Any] = {
        "key": "job-1",
        "source": SourceRef(kind="git", location="repository.git"),
        "base_commit": "1" * 40,
        "base_tree": "2" * 40,
        "issue": "Something is wrong.",
        "image": "sha256:" + "3" * 64,
        "image_name": "sandbox-python",
        "model": "replay:replay.jsonl",
        "replay_sha256": sha256_hex(replay) if replay is not None else None,
    }
    return JobSpec(**(values | fields))


def claim_of(job: JobSpec, **fields: Any) -> Claim:
    """A claim of a decide step that holds plenty."""
    values: dict[str, Any] = {
        "step_id": 7,
        "fence": 1,
        "attempt": 1,
        "kind": "decide",
        "seq": 3,
        "job_id": 5,
        "batch_id": 2,
        "batch_name": "batch",
        "agent_id": 5,
        "job": job,
        "head_tree": job.base_tree,
        "input": {},
        "free": PLENTY,
        "held": PLENTY,
        "reserve": Amounts(),
        "submitted_at": datetime(2029, 12, 31, tzinfo=UTC),
        "deadline_at": datetime(2030, 1, 1, tzinfo=UTC),
        "remaining_ms": 60_000,
    }
    return Claim(**(values | fields))


def decider_of(*replays: bytes, half: Callable[[], float] = lambda: 0.5) -> Decider:
    """A decider that knows these replays and whose randomness is always one half."""
    known = {sha256_hex(replay): replay for replay in replays}

    def fetch(sha256: str) -> bytes:
        if sha256 not in known:
            raise Permanent(f"no object {sha256}")
        return known[sha256]

    return Decider(models={"replay": ReplayModel(fetch)}, backoff=Backoff(random=half))
