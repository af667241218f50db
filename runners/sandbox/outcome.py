"""From what was seen to what is said: the verdicts of one run, each from evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from runners.sandbox.backend import SandboxBroken
from runners.sandbox.frames import Report
from runners.sandbox.output import BoundedOutput
from runners.sandbox.spec import EngineFacts, ReportFile, SandboxResult, SandboxSpec, Timings

NO_SUCH_COMMAND = {"2": "not found", "13": "not executable", "8": "of no executable format", "20": "not found"}
"""The errno of a failed exec: ENOENT, EACCES, ENOEXEC, ENOTDIR."""
FULL_BELOW = 100
"""A file system is full when less than one part in so many is free. Nobody is writing when it is looked at."""


@dataclass(frozen=True)
class Outcome:
    """What one run left. `why` is our own reason for ending it; `first_process_oom_killed` is the engine's word that
    the kernel did, taken only where the sandbox could not report. `seen` are facts in the report's form that were seen
    from outside, and count more than what the sandbox says."""

    report: Report
    output: BoundedOutput
    why: str | None
    first_process_oom_killed: bool = False
    seen: Mapping[str, str] = field(default_factory=dict)


def result_of(
    spec: SandboxSpec, name: str, outcome: Outcome, timings: Timings, engine: EngineFacts, *, armed: bool = False
) -> SandboxResult:
    """The result record. With `armed`, its first files were there before, and their time is not this command's.

    Raises SandboxBroken when files could not be unpacked for another reason than their size.
    """
    facts, output = {**(outcome.report.facts or {}), **outcome.seen}, outcome.output
    if outcome.why == "stalled" and not outcome.report.ended:
        raise SandboxBroken("the sandbox did not begin with its command in time")
    status = int(facts["status"]) if "status" in facts else None
    succeeded = status == 0
    oom_kills = kernel_oom_kills(facts) + outcome.first_process_oom_killed
    full = [path for path in ("/workspace", "/tmp") if _is_full(facts.get(f"disk:{path}", ""))]  # noqa: S108
    unpacked = facts.get("unpacked", "1") == "1"
    if not unpacked and not full and not oom_kills:
        said = (output.head + output.tail).decode(errors="replace")[-300:]
        raise SandboxBroken(f"the sandbox could not unpack its files: {said}")
    return SandboxResult(
        sandbox=name,
        image=spec.image,
        exit_code=status >> 8 if status is not None and not status & 127 else None,
        signal=status & 127 if status is not None and status & 127 else None,
        timed_out=outcome.why == "timed_out" or facts.get("timed_out") == "1",
        oom_killed=oom_kills > 0 and not succeeded,
        cancelled=outcome.why == "cancelled",
        disk_full=bool(full) and not succeeded,
        command_not_found=facts.get("exec_errno") in NO_SUCH_COMMAND,
        output_flooded=outcome.why == "output_flooded",
        unpacked=unpacked,
        output_head=output.head,
        output_tail=output.tail,
        output_bytes=output.total_bytes,
        output_truncated=output.truncated,
        reports=_reports(spec, outcome.report),
        workspace_tar=outcome.report.workspace_tar if spec.export_workspace else None,
        workspace_state=outcome.report.workspace_state if spec.export_workspace else "not_asked",
        workspace_sockets=outcome.report.workspace_sockets,
        timings=timings.model_copy(update=_inner_timings(facts, armed=armed)),
        cpu_ms=int(facts["cpu_ms"]) if "cpu_ms" in facts else None,
        peak_memory_bytes=_peak_memory(facts),
        oom_kills=oom_kills,
        refused_forks=_counter(facts.get("cgroup:pids.events") or facts.get("cgroup:pids/pids.events", ""), "max"),
        evidence=_evidence(outcome, facts, full),
        engine=engine,
        probe_id=spec.probe_id,
    )


def _inner_timings(facts: Mapping[str, str], *, armed: bool) -> dict[str, int]:
    """What the first process measured itself."""
    took = {key: int(facts[key]) for key in ("unpack_ms", "run_ms") if key in facts}
    if "ahead_ms" in facts and not armed:
        took["unpack_ms"] = took.get("unpack_ms", 0) + int(facts["ahead_ms"])
    return took


def _reports(spec: SandboxSpec, report: Report) -> tuple[ReportFile, ...]:
    return tuple(report.files.get(path) or ReportFile(path=path, state="missing") for path in spec.reports)


def _evidence(outcome: Outcome, facts: dict[str, str], full: list[str]) -> dict[str, Any]:
    evidence: dict[str, Any] = {"ended_by_us": outcome.why, "reported": outcome.report.ended, "full": full}
    if "exec_errno" in facts:
        evidence["command"] = NO_SUCH_COMMAND.get(facts["exec_errno"], f"errno {facts['exec_errno']}")
    return evidence | {name: value.strip() for name, value in facts.items() if name.startswith("cgroup:") and value}


def kernel_oom_kills(facts: Mapping[str, str]) -> int:
    """How many processes the kernel killed for memory: cgroup v2 counts them in memory.events, v1 in
    memory.oom_control."""
    return _counter(facts.get("cgroup:memory.events") or facts.get("cgroup:memory/memory.oom_control", ""), "oom_kill")


def _peak_memory(facts: dict[str, str]) -> int | None:
    value = facts.get("cgroup:memory.peak") or facts.get("cgroup:memory/memory.max_usage_in_bytes", "")
    return int(value) if value.strip().isdigit() else None


def _counter(text: str, name: str) -> int:
    """The number after `name` in a flat-keyed cgroup file that was read as one line."""
    words = text.split()
    for key, value in pairwise(words):
        if key == name and value.isdigit():
            return int(value)
    return 0


def _is_full(space: str) -> bool:
    """Of `statfs`: block size, blocks, free, available, inodes, free inodes."""
    numbers = [int(number) for number in space.split(",") if number.lstrip("-").isdigit()]
    if len(numbers) != 6:
        return False
    _, blocks, _, available, inodes, free_inodes = numbers
    return available * FULL_BELOW < blocks or free_inodes * FULL_BELOW < inodes
