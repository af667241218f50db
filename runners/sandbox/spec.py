"""What goes into a sandbox and what comes out: records, never text to be searched for meaning.

A result says what was seen: who ended the command, by which evidence, and how much it took. A flag is set only by
evidence (our own clock, the cgroup's counters, the file systems' free space), never by the number 137.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ledger.records.base import Record
from ledger.records.job import Digest
from policy.ceilings import MIB, Limits

__all__ = [
    "EngineFacts",
    "Limits",
    "NetworkGrant",
    "NetworkRequest",
    "ReportFile",
    "SandboxPlace",
    "SandboxResult",
    "SandboxSpec",
    "Timings",
]

MAX_ARGUMENT_BYTES = 100_000
MAX_COMMAND_BYTES = 1_000_000

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]+$", max_length=4096)]
Ended = Literal[
    "exited", "signalled", "timed_out", "oom_killed", "disk_full", "command_not_found", "output_flooded", "cancelled"
]

NetworkOutcome = Literal[
    "allowed", "not_allowed", "not_public", "own_address", "malformed", "unresolved", "unreachable", "other_name",
    "hidden_name", "too_slow", "too_many", "too_much",
]  # fmt: skip


class NetworkGrant(Record):
    """What a command may reach through its proxy: patterns `allow` of `policy.network`, at public addresses and at
    those of the ranges `private`."""

    allow: tuple[str, ...] = Field(min_length=1)
    private: tuple[str, ...] = ()


class NetworkRequest(Record):
    """One request of a command. `outcome` is `allowed`, or why it went no further; after a connection that was broken
    off by a bound, which. `address` is where it was connected to, the bytes are those that were passed on."""

    host: str = Field(max_length=300)
    port: int = Field(ge=0, le=65_535)
    address: str | None = Field(max_length=100)
    outcome: NetworkOutcome
    detail: str = Field(max_length=300)
    up_bytes: int = Field(ge=0)
    down_bytes: int = Field(ge=0)
    ms: int = Field(ge=0)


class SandboxPlace(Record):
    """All of a sandbox but its command.

    `image` is a manifest digest (or an image id of the engine); `image_config` its configuration's digest, which is
    checked when it is known. Job, step and fence say whose it is. `probe_id` is the probe that allows a job's sandbox;
    only a probe's own sandboxes, whose `purpose` is `probe`, do without. With `armed_seconds` it is one that waits for
    its command for so long at most. With a `network` its command is told of a proxy; it has no other way out, and none
    without: such a sandbox is never one that waits.
    """

    image: Digest
    image_config: Digest | None = None
    limits: Limits = Limits()
    job_id: int
    step_id: int
    fence: int
    purpose: Literal["job", "probe"] = "job"
    probe_id: int | None = None
    armed_seconds: float | None = Field(default=None, gt=0, le=3600)
    network: NetworkGrant | None = None

    def can_serve(self, spec: SandboxSpec) -> bool:
        """Whether a sandbox in this place is what `spec` asks for, whatever step armed it."""
        if self.network is not None or spec.network is not None:
            return False
        mine, asked = ({name: getattr(one, name) for name in _SERVES} for one in (self, spec))
        return mine == asked


class SandboxSpec(SandboxPlace):
    """One command to be run once.

    `reports` are absolute paths of files to be brought out, each of at most `report_bytes`; with `export_workspace` the
    workspace comes out too, as a tar of at most `workspace_export_bytes`.
    """

    command: tuple[str, ...] = Field(min_length=1)
    deadline_seconds: float = Field(gt=0, le=86_400)
    reports: tuple[AbsolutePath, ...] = Field(default=(), max_length=16)
    report_bytes: int = Field(default=16 * MIB, ge=1, le=256 * MIB)
    export_workspace: bool = False
    workspace_export_bytes: int = Field(default=128 * MIB, ge=1, le=4096 * MIB)

    @field_validator("command")
    @classmethod
    def _can_be_executed(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        sizes = [len(part.encode()) for part in command]  # a lone surrogate is a ValueError
        if not command[0] or any("\0" in part for part in command):
            raise ValueError("a command has a name and holds no NUL")
        if max(sizes) > MAX_ARGUMENT_BYTES or sum(sizes) > MAX_COMMAND_BYTES:
            raise ValueError(f"an argument has at most {MAX_ARGUMENT_BYTES} bytes, a command {MAX_COMMAND_BYTES}")
        return command


_SERVES = tuple(name for name in SandboxPlace.model_fields if name not in ("step_id", "fence", "armed_seconds"))
"""What has to be the same of an armed sandbox and a command. Its probe too: a newer one may have seen something new."""


class ReportFile(Record):
    """A file that was asked for. `state` other than `ok` says why `data` is empty."""

    path: str
    state: Literal["ok", "missing", "not_a_file", "too_big"]
    data: bytes = b""


class Timings(Record):
    """Milliseconds by our clock; `unpack_ms` and `run_ms` (the command alone) by PID 1's, when it could report."""

    create_ms: int = 0
    start_ms: int = 0
    unpack_ms: int = 0
    run_ms: int = 0
    export_ms: int = 0
    remove_ms: int = 0
    total_ms: int = 0


class EngineFacts(Record):
    """What ran the sandbox: it belongs to the evidence. `cgroup_version` is 1 or 2."""

    backend: str
    host: str
    version: str
    runtime: str
    runtime_version: str
    kernel: str
    architecture: str
    cgroup_version: int
    storage: str


class SandboxResult(Record):
    """What became of one command.

    Exactly one of `exit_code` and `signal` is given when the command ended by itself or by a signal that was not ours;
    neither when we ended it or it never ran. `oom_kills` counts processes that the kernel killed for memory;
    `oom_killed` says that there were some and that the command did not succeed all the same. `disk_full` says that a
    file system was full at the end and that the command failed, or that the workspace did not fit (`unpacked` false).
    Output beyond `limits.output_bytes` is counted in `output_bytes` and left out of the middle.
    """

    sandbox: str
    image: Digest
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    cancelled: bool = False
    disk_full: bool = False
    command_not_found: bool = False
    output_flooded: bool = False
    unpacked: bool = True
    output_head: bytes = b""
    output_tail: bytes = b""
    output_bytes: int = 0
    output_truncated: bool = False
    reports: tuple[ReportFile, ...] = ()
    workspace_tar: bytes | None = None
    workspace_state: Literal["not_asked", "ok", "too_big", "failed"] = "not_asked"
    workspace_sockets: tuple[str, ...] = ()
    timings: Timings = Timings()
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int = 0
    refused_forks: int = 0
    evidence: dict[str, Any] = {}
    engine: EngineFacts | None = None
    probe_id: int | None = None

    @property
    def output(self) -> bytes:
        """What was kept of the output, with a line that says how much is missing where something is."""
        if not self.output_truncated:
            return self.output_head + self.output_tail
        missing = self.output_bytes - len(self.output_head) - len(self.output_tail)
        return b"%s\n[... %d bytes left out ...]\n%s" % (self.output_head, missing, self.output_tail)

    @property
    def ended(self) -> Ended:
        """The one word for how it ended; what we did ourselves comes first."""
        for word in ("cancelled", "timed_out", "output_flooded", "command_not_found", "oom_killed", "disk_full"):
            if getattr(self, word):
                return word
        return "exited" if self.exit_code is not None else "signalled"
