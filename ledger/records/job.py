"""A job as it is submitted: everything that a worker on another host needs to do it, and nothing that it must guess.

Paths of the submitting machine are gone by then: acceptance files and replays are in the ledger's objects, the image
is a digest, the base is a commit and a tree.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from ledger.records.base import Record, canonical_json, sha256_hex
from ledger.records.budget import Budget
from ledger.records.publish import Publish
from ledger.records.source import SourceRef

JobKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Argv = Annotated[tuple[str, ...], Field(min_length=1)]

JobState = Literal[
    "queued",
    "running",
    "awaiting_approval",
    "verifying",
    "publishing",
    "completed",
    "failed",
    "cancelled",
    "budget_exhausted",
    "needs_attention",
]
TERMINAL: tuple[JobState, ...] = ("completed", "failed", "cancelled", "budget_exhausted", "needs_attention")

Reason = Literal[
    "verified",
    "verification_failed",
    "acceptance_failed",
    "no_tests_ran",
    "protected_path_changed",
    "empty_patch",
    "model_error",
    "replay_exhausted",
    "no_progress",
    "policy_denied",
    "approval_denied",
    "cancelled_by_user",
    "isolation_unverified",
    "image_unavailable",
    "repo_unavailable",
    "environment_failed",
    "too_many_attempts",
    "effect_uncertain",
    "publish_refused",
    "budget:steps",
    "budget:tool_calls",
    "budget:agents",
    "budget:input_tokens",
    "budget:output_tokens",
    "budget:cost_microusd",
    "budget:sandbox_ms",
    "budget:deadline",
]


def state_of(reason: Reason) -> JobState:
    """The one terminal state that a reason belongs to."""
    if reason == "verified":
        return "completed"
    if reason == "cancelled_by_user":
        return "cancelled"
    if reason.startswith("budget:"):
        return "budget_exhausted"
    if reason in ("too_many_attempts", "effect_uncertain"):
        return "needs_attention"
    return "failed"


class Tests(Record):
    """The job's own tests: a command, the JUnit report it writes (absolute path in the sandbox), its time limit."""

    __test__: ClassVar[bool] = False  # not a test class for pytest

    command: Argv
    report: str = "/tmp/report.xml"  # noqa: S108  (a path inside the sandbox)
    timeout_seconds: float = Field(default=120, gt=0, le=86_400)


class Acceptance(Record):
    """The hidden tests: files (a tar in the ledger's objects) laid over the tree for the verifier only."""

    files_sha256: str | None = None
    command: Argv
    report: str = "/tmp/report.xml"  # noqa: S108  (a path inside the sandbox)
    timeout_seconds: float = Field(default=120, gt=0, le=86_400)
    fail_to_pass: tuple[str, ...] = Field(min_length=1)
    pass_to_pass: tuple[str, ...] = ()
    red_on_base: bool = True


class SandboxLimits(Record):
    """What a job may tighten of the sandbox's caps; None is the default of the policy."""

    memory_mb: int | None = Field(default=None, ge=1)
    cpus: float | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, ge=1)
    workspace_mb: int | None = Field(default=None, ge=1)
    tmp_mb: int | None = Field(default=None, ge=1)
    output_kb: int | None = Field(default=None, ge=1)


class Network(Record):
    """What the commands of a job may reach: hosts with ports, `*.` for all names below one (`policy.network`). The
    verifier's commands may only if `verify` says so."""

    allow: tuple[Annotated[str, StringConstraints(min_length=1, max_length=300)], ...] = Field(
        min_length=1, max_length=64
    )
    verify: bool = False


class JobSpec(Record):
    """One job, resolved. `base_commit` and `base_tree` are full git object ids."""

    key: JobKey
    source: SourceRef
    base_commit: str
    base_tree: str
    issue: str
    image: Digest
    image_name: str
    model: str
    model_options: dict[str, Any] = Field(default_factory=dict)
    replay_sha256: str | None = None
    strategy: Literal["single"] = "single"
    budget: Budget = Budget()
    tests: Tests | None = None
    acceptance: Acceptance | None = None
    limits: SandboxLimits = SandboxLimits()
    network: Network | None = None
    writable: tuple[str, ...] = ("**",)
    protected: tuple[str, ...] = ()
    approvals: Literal["deny", "ask", "allow"] = "deny"
    publish: Publish = Publish()
    priority: int = Field(default=0, ge=-100, le=100)

    def plain(self) -> dict[str, Any]:
        """As every record's. A job without a network is what it was before there were any, to its fingerprint too."""
        plain = super().plain()
        if self.network is None:
            del plain["network"]
        return plain

    def fingerprint(self) -> str:
        """What decides whether two submissions are the same job."""
        return sha256_hex(canonical_json(self.plain()))


class BatchSpec(Record):
    """What a batch says of all its jobs together."""

    name: JobKey
    weight: float = Field(default=1.0, gt=0, le=1_000)
    max_parallel: int | None = Field(default=None, ge=1, le=100_000)
