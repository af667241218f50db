"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def batch_table(seen: dict[str, Any]) -> str:
    """The comparison and where patchyard's time went, in Markdown."""
    summary, machine = seen["summary"], seen["machine"]
    lines = [
        "# A batch of small repairs, side by side",
        "",
        _machine_line(seen["measured_at"], machine),
        "",
        f"{seen['jobs']} jobs a round, {seen['slots']} containers at once, four tool calls a job; patchyard's figures "
        "include submission and verification.",
        "",
        *_table(
            ("round", "system", "succeeded", "seconds", "jobs a minute", "slot ms a tool call", "processor ms a job"),
            (
                (
                    run["round"].rpartition("round-")[2],
                    run["system"],
                    f"{run['succeeded']}/{run['jobs']}",
                    f"{run['seconds']:.1f}",
                    f"{run['jobs_per_minute']:.1f}",
                    f"{run['slot_ms_per_tool_call']:.0f}",
                    f"{run['cpu_ms_per_job']:.0f}",
                )
                for run in seen["runs"]
            ),
        ),
        "",
        f"**patchyard does {summary['ratio']:.2f} × the jobs a minute of mini-swe-agent** "
        f"({summary['patchyard']['jobs_per_minute']:.1f} to {summary['rival']['jobs_per_minute']:.1f}; round by round "
        f"{', '.join(f'{ratio:.2f}' for ratio in summary['ratios'])}).",
        "",
    ]
    last = [run for run in seen["runs"] if run["system"].startswith("patchyard")][-1]
    return "\n".join([*lines, *_without_engine_lines(seen["without_engine"]), *_time_table(last), ""])


def _without_engine_lines(run: dict[str, Any]) -> list[str]:
    if "not_measured" in run:
        return [f"Without an engine nothing was measured: {run['not_measured']}.", ""]
    return [
        f"Without an engine ({run['system']}), where there is nothing to compare it with: "
        f"{run['succeeded']}/{run['jobs']} in {run['seconds']:.1f} s, **{run['jobs_per_minute']:.1f} jobs a minute**, "
        f"{run['slot_ms_per_tool_call']:.0f} slot ms a tool call, {run['cpu_ms_per_job']:.0f} processor ms a job.",
        "",
    ]


def _machine_line(measured_at: str, machine: dict[str, Any]) -> str:
    engine = machine.get("engine", {})
    parts = [
        f"Measured {measured_at} on {machine['cores']} cores",
        f"{machine['memory_gib']} GiB",
        f"kernel {machine['kernel']}",
        f"cgroup {machine['cgroup']}",
        machine["distribution"],
    ]
    if engine:
        parts.append(f"engine {engine['version']} ({engine['storage']}, {engine['runtime']})")
    if "idle_share_before" in machine:
        parts.append(f"{machine['idle_share_before']:.0%} idle before")
    return ", ".join(parts) + "."


def _time_table(run: dict[str, Any]) -> list[str]:
    details = run["details"]
    steps = _table(
        ("step", "steps", "wait ms (p50, p95)", "work ms (p50, p95)", "work ms a job"),
        (
            (
                kind,
                str(step["steps"]),
                _pair(step["wait_ms_p50"], step["wait_ms_p95"]),
                _pair(step["work_ms_p50"], step["work_ms_p95"]),
                f"{step['work_ms_per_job']:.0f}",
            )
            for kind, step in details["steps"].items()
        ),
    )
    cpu = _table(
        ("of the processor time, its own services", "ms a job"),
        ((name, f"{ms:.0f}") for name, ms in details["cpu_ms_per_job"].items()),
    )
    return [
        "## Where patchyard's time went, last round",
        "",
        f"{details['sandboxes_per_job']:.2f} sandboxes a job, "
        f"{_pair(details['sandbox_ms_p50'], details['sandbox_ms_p95'])} ms (p50, p95) from registration to the proof "
        "of removal.",
        "",
        *steps,
        "",
        *cpu,
    ]


def _pair(middle: float | None, high: float | None) -> str:
    return "–" if middle is None or high is None else f"{middle:.0f}, {high:.0f}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def submit_table(seen: dict[str, Any]) -> str:
    """Submission and queries on a large batch, in Markdown."""
    rows = [(name, f"{value['p50']:.0f}", f"{value['max']:.0f}") for name, value in seen["latency_ms"].items()]
    submission = [
        (
            str(one["jobs"]),
            one["what"],
            f"{one['seconds']:.2f}",
            f"{one['peak_rss_mib']:.0f}",
        )
        for one in seen["submissions"]
    ]
    return "\n".join(
        [
            "# Submission of a large batch",
            "",
            _machine_line(seen["measured_at"], seen["machine"]),
            "",
            *_table(("jobs", "what", "seconds", "client's peak memory, MiB"), submission),
            "",
            f"Queries on the batch of {seen['jobs']} jobs:",
            "",
            *_table(("query", "ms, p50", "ms, most"), rows),
            "",
        ]
    )
