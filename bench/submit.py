"""Submission of a large batch, and how the command line answers while the stack works on it.

    python -m bench.submit

A JSON-lines file of 10,000 jobs, each with an issue of its own, is submitted to a stack that runs: workers and
scheduler start on its jobs the moment they are there. A submission of a tenth of that shows whether the client's memory
grows with the batch. Results go to `bench/results/submit.json` and, as a table, to `bench/results/submit.md`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import machine, ours
from bench.batch import IMAGE, RESULTS
from bench.figures import percentile
from bench.folder import measurement_folder
from bench.report import submit_table
from bench.workload import ISSUE, batch, decisions, prepare_round
from ledger.reads import batch_progress, find_batch, list_jobs, unfinished

REPEATS = 7
_SAMPLE_SECONDS = 0.02


def write_batch(folder: Path, name: str, jobs: int) -> Path:
    """A batch file whose jobs stand in a JSON-lines file beside it; they share one repository and one replay."""
    work = prepare_round(folder, name, 1)
    stated = batch(name, work.jobs, None)
    replay = folder / "replays" / "shared.jsonl"
    replay.write_text("".join(json.dumps(line) + "\n" for line in decisions(work.jobs[0])))
    with (folder / "jobs.jsonl").open("w") as lines:
        for number in range(jobs):
            lines.write(json.dumps({"id": f"job-{number:05}", "issue": f"{ISSUE} Seen {number + 1} times."}) + "\n")
    stated["defaults"] = {**_mapping(stated["defaults"]), "model": "replay:replays/shared.jsonl"}
    stated["jobs"] = "jobs.jsonl"
    work.batch_file.write_text(json.dumps(stated))
    return work.batch_file


def _mapping(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value


def run_watched(stack: ours.Stack, *arguments: str) -> tuple[float, float]:
    """Seconds and peak resident memory (MiB) of one command of patchyard's."""
    began = time.monotonic()
    process = subprocess.Popen(
        stack.command(*arguments), env=stack.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, _peak_mib(process.pid))
        time.sleep(_SAMPLE_SECONDS)
    seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"patchyard {' '.join(arguments)} ended with {process.returncode}")
    return seconds, peak


def _peak_mib(pid: int) -> float:
    """The kernel's high-water mark of a process's resident memory, 0 when it is gone; see proc(5)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def _first_line_of_watch(stack: ours.Stack, name: str) -> None:
    with subprocess.Popen(
        stack.command("watch", name, "--json"),
        env=stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)


def _latencies(stack: ours.Stack, name: str) -> dict[str, dict[str, float | None]]:
    batch_id = find_batch(stack.db, name).id
    questions: dict[str, Callable[[], object]] = {
        "ledger: progress of the batch": lambda: batch_progress(stack.db, batch_id),
        "ledger: a page of 1,000 jobs": lambda: list_jobs(stack.db, batch_id),
        "ledger: unfinished jobs": lambda: unfinished(stack.db, batch_id),
        "patchyard list --json": lambda: run_watched(stack, "list", "--json"),
        "patchyard status BATCH (100 jobs shown)": lambda: run_watched(stack, "status", name),
        "patchyard status BATCH --json (all jobs)": lambda: run_watched(stack, "status", name, "--json"),
        "patchyard watch BATCH --json, first line": lambda: _first_line_of_watch(stack, name),
    }
    return {question: _timed(ask) for question, ask in questions.items()}


def _timed(ask: Callable[[], object]) -> dict[str, float | None]:
    seen = []
    for _ in range(REPEATS):
        began = time.monotonic()
        ask()
        seen.append((time.monotonic() - began) * 1000)
    return {"p50": percentile(seen, 50), "max": percentile(seen, 100)}


def measure(folder: Path, home: Path, jobs: int) -> dict[str, Any]:
    """Submits a tenth of `jobs`, then all, then the same again; asks; cancels."""
    quiet = machine.idle_share()
    with ours.running_stack(home, None, "auto") as stack:
        ours.image_reference(stack, IMAGE)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        small, large = f"submit-{stamp}-small", f"submit-{stamp}-large"
        files = {
            small: write_batch(folder / small, small, max(jobs // 10, 1)),
            large: write_batch(folder / large, large, jobs),
        }
        submissions = []
        for name, what in ((small, "new"), (large, "new"), (large, "the same again")):
            seconds, peak = run_watched(stack, "submit", str(files[name]), "--json")
            number = jobs if name == large else max(jobs // 10, 1)
            submissions.append(
                {"jobs": number, "what": what, "seconds": round(seconds, 3), "peak_rss_mib": round(peak, 1)}
            )
            ours.say(f"{what}, {number} jobs: {seconds:.2f} s, {peak:.0f} MiB")
            if name == small:
                run_watched(stack, "cancel", small)
        latency = _latencies(stack, large)
        cancel_seconds, _ = run_watched(stack, "cancel", large)
        progress = batch_progress(stack.db, find_batch(stack.db, large).id)
        facts = machine.facts(stack.settings.docker_host)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**facts, "idle_share_before": quiet},
        "jobs": jobs,
        "submissions": submissions,
        "latency_ms": latency,
        "cancel_seconds": round(cancel_seconds, 3),
        "states_after_cancel": dict(progress.states),
    }


def main(
    jobs: Annotated[int, typer.Option(min=10, help="Jobs of the large batch.")] = 10_000,
    home: Annotated[Path | None, typer.Option(help="A PATCHYARD_HOME to use and keep; else a new one.")] = None,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = RESULTS,
) -> None:
    """Measure the submission of a large batch."""
    with measurement_folder() as folder:
        seen = measure(folder, home or folder / "home", jobs)
    out.mkdir(parents=True, exist_ok=True)
    (out / "submit.json").write_text(json.dumps(seen, indent=1) + "\n")
    table = submit_table(seen)
    (out / "submit.md").write_text(table)
    print(table)


if __name__ == "__main__":
    typer.run(main)
