"""The ledger's results as a table for people."""

from __future__ import annotations

from typing import Any

NAMES = {"celery": "Celery, no-op tasks", "dbos": "DBOS, no-op steps", "procrastinate": "Procrastinate, no-op jobs"}


def ledger_table(seen: dict[str, Any]) -> str:
    """Throughput, latency and their ratios, in Markdown."""
    machine, summary = seen["machine"], seen["summary"]
    ours = list(summary["of_celery"])
    lines = [
        "# Durable steps, side by side",
        "",
        f"Measured {seen['measured_at']} on {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']} GiB, kernel {machine['kernel']}, {machine['distribution']}; load average before "
        f"{machine['load_average_before'][0]}, {machine['idle_share_before']:.0%} idle; between the runs "
        f"{min(seen['a_second']['idle share before']):.0%} to {max(seen['a_second']['idle share before']):.0%} idle.",
        "",
        f"One worker process with {seen['threads']} threads each, {seen['rounds']} rounds in turn, one PostgreSQL with "
        f"fsync and one Valkey for all; DBOS {seen['versions']['dbos']}, Procrastinate "
        f"{seen['versions']['procrastinate']}.",
        "",
        "| system | a second, median | least, most |",
        "|---|---|---|",
    ]
    for name in ["celery", *ours, "dbos", "procrastinate"]:
        values = seen["a_second"][name]
        lines.append(
            f"| {_label(name)} | {summary['median_a_second'][name]:.0f} | {min(values):.0f}, {max(values):.0f} |"
        )
    lines += ["", "Medians of the ratios, round by round:", ""]
    lines += ["| patchyard with a history of | × Celery | × DBOS | × Procrastinate | × smallest history |"]
    lines += ["|---|---|---|---|---|"]
    for name in ours:
        cells = [f"{summary[key][name]:.2f}" for key in ("of_celery", "of_dbos", "of_procrastinate")]
        lines.append(f"| {_size(name)} | {' | '.join(cells)} | {summary['of_smallest_history'][name]:.2f} |")
    lines += ["", f"Idle, from ready to claimed, {seen['samples']} each:", ""]
    lines += ["| system | ms, p50 | ms, p95 | p50 × Celery | p50 × smallest history |", "|---|---|---|---|---|"]
    for name in ["celery", *ours]:
        took = seen["idle_latency_ms"][name]
        ratios = [f"{summary[key].get(name, 1):.2f}" for key in ("latency_of_celery", "latency_of_smallest_history")]
        shown = ratios if name != "celery" else ["–", "–"]
        lines.append(f"| {_label(name)} | {took['p50']} | {took['p95']} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def _label(name: str) -> str:
    return NAMES.get(name) or f"patchyard, durable steps, history of {_size(name)}"


def _size(name: str) -> str:
    return f"{int(name.split()[1]):,} steps"
