"""patchyard's half: the real stack, a batch submitted by the command line, and where the time of its jobs went.

The clock starts before `patchyard submit` is started and stops at the ledger's time of the last verified job: the
client's start, validation, submission, dispatch, both verifications and the proof that every sandbox is gone are in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Run, percentile
from bench.workload import TOOL_CALLS, Round
from ledger.connect import Database
from ledger.reads import ResultRow, StepRow, find_batch, iter_results, job_sandboxes, job_steps, unfinished
from patchyard.batchfile.lookups import FoundImage
from patchyard.image_shelf import bring_images, build_image, layout_of, locked_images
from patchyard.local.home import Home
from patchyard.local.processes import stack_processes
from patchyard.local.stack import ensure_up, stop
from patchyard.settings import Settings, load_settings

_POLL_SECONDS = 0.25
_STALLED_SECONDS = 120


@dataclass(frozen=True)
class Stack:
    """A stack that runs: its settings, the address of what runs its sandboxes, its ledger."""

    settings: Settings
    engine: str
    runtime: str
    db: Database

    def command(self, *arguments: str) -> list[str]:
        """A command line of patchyard's; run it with `environment`."""
        return [sys.executable, "-m", "patchyard.cli", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "PATCHYARD_HOME": str(self.settings.home),
            "PATCHYARD_SANDBOX_BACKEND": self.settings.sandbox_backend,
        }
        if self.settings.docker_host is not None:
            own["PATCHYARD_DOCKER_HOST"] = self.settings.docker_host
        return {**os.environ, **own}


def say(line: str) -> None:
    """A line for whoever waits."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def running_stack(home: Path, slots: int | None, backend: str) -> Iterator[Stack]:
    """A private stack in `home` with `slots` sandboxes at once (None: patchyard's own default), stopped at the end.

    Raises Unfit when this machine has not got what `backend` needs.
    """
    given = {} if slots is None else {"sandbox_slots": slots}
    settings = load_settings(home=home, sandbox_backend=backend, **given)
    try:
        running = ensure_up(settings, say=say)
        if running.engine is None:
            raise SystemExit("the stack's sandboxes do not run on this machine; see `patchyard doctor`")
        settings = settings.model_copy(update={"docker_host": running.docker_host})
        runtime = f"{running.sandbox_backend} {running.sandbox_runtime or ''}".strip()
        with Database(running.database_url, name="bench") as db:
            yield Stack(settings, running.engine, runtime, db)
    finally:
        left = stop(settings, say=say)
        if left:
            say(f"left running: {left}")


def run_round(stack: Stack, work: Round) -> Run:
    """Submits the batch of `work`, waits for its end and reads the figures from the ledger."""
    before = _cpu_seconds(stack)
    began = time.time()
    subprocess.run(
        stack.command("submit", str(work.batch_file), "--json"),
        check=True,
        env=stack.environment,
        stdout=subprocess.DEVNULL,
    )
    submitted = time.time()
    batch = find_batch(stack.db, work.name)
    _wait_until_ended(stack, batch.id)
    after = _cpu_seconds(stack)
    rows = list(iter_results(stack.db, batch.id))
    ended = max(row.finished_at.timestamp() for row in rows if row.finished_at)
    return Run(
        system=f"patchyard ({stack.runtime})",
        round=work.name,
        jobs=len(rows),
        succeeded=sum(row.reason == "verified" for row in rows),
        seconds=ended - began,
        slots=stack.settings.sandbox_slots,
        tool_calls=TOOL_CALLS,
        details={
            "submit_command_seconds": round(submitted - began, 3),
            "ends": _counts(row.reason or row.state for row in rows),
            "cpu_ms_per_job": {
                name: round((after[name] - before.get(name, 0.0)) * 1000 / len(rows), 1) for name in sorted(after)
            },
            **_where_the_time_went(stack.db, rows),
        },
    )


def _wait_until_ended(stack: Stack, batch_id: int) -> None:
    left, since = unfinished(stack.db, batch_id), time.monotonic()
    while left:
        time.sleep(_POLL_SECONDS)
        now_left = unfinished(stack.db, batch_id)
        if now_left != left:
            left, since = now_left, time.monotonic()
        elif time.monotonic() - since > _STALLED_SECONDS:
            raise SystemExit(f"no job has ended for {_STALLED_SECONDS} s; see the logs in {stack.settings.home}/logs")


def _counts(values: Iterator[str] | Any) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for value in values:
        found[value] += 1
    return dict(found)


def _cpu_seconds(stack: Stack) -> dict[str, float]:
    """Processor seconds so far of each service of the stack."""
    found: dict[str, float] = defaultdict(float)
    home = Home(stack.settings.home.resolve())
    for process in stack_processes(home.path, [home.postgres_data]):
        try:
            times = psutil.Process(process.pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[process.service] += times.user + times.system
    return dict(found)


def _where_the_time_went(db: Database, rows: list[ResultRow]) -> dict[str, Any]:
    """Milliseconds a job by kind of step: `wait` from being ready to its claim, `work` from its claim to its end."""
    waits: dict[str, list[float]] = defaultdict(list)
    works: dict[str, list[float]] = defaultdict(list)
    sandboxes: list[float] = []
    for row in rows:
        for step in job_steps(db, row.job_id):
            if step.started_at and step.finished_at:
                kind = _kind(step)
                if step.seq > 1:
                    waits[kind].append(_ms(step.started_at, step.created_at))
                works[kind].append(_ms(step.finished_at, step.started_at))
        sandboxes += [_ms(box.removed_at, box.registered_at) for box in job_sandboxes(db, row.job_id) if box.removed_at]
    steps = {
        kind: {
            "steps": len(works[kind]),
            "wait_ms_p50": percentile(waits[kind], 50),
            "wait_ms_p95": percentile(waits[kind], 95),
            "work_ms_p50": percentile(works[kind], 50),
            "work_ms_p95": percentile(works[kind], 95),
            "work_ms_per_job": round(sum(works[kind]) / len(rows), 1),
            "wait_ms_per_job": round(sum(waits[kind]) / len(rows), 1),
        }
        for kind in sorted(works)
    }
    spans = [_ms(row.finished_at, row.started_at) for row in rows if row.finished_at and row.started_at]
    return {
        "job_ms_p50": percentile(spans, 50),
        "steps": steps,
        "sandboxes_per_job": round(len(sandboxes) / len(rows), 2),
        "sandbox_ms_p50": percentile(sandboxes, 50),
        "sandbox_ms_p95": percentile(sandboxes, 95),
    }


def _kind(step: StepRow) -> str:
    """`act read_file`, `verify head`, `decide` …"""
    told = step.input.get("on") if step.kind == "verify" else _tool(step.input)
    return f"{step.kind} {told}" if told else step.kind


def _tool(told: dict[str, Any]) -> str | None:
    call = told.get("call", told)
    name = call.get("name") or call.get("tool") if isinstance(call, dict) else None
    return name if isinstance(name, str) else None


def _ms(later: Any, earlier: Any) -> float:
    return float((later - earlier).total_seconds() * 1000)


def image_reference(stack: Stack, name: str) -> str:
    """What `docker run` is to be given for the locked image `name`; it is built and loaded if it is not there yet."""
    entry = locked_images(stack.settings).get(name)
    if entry is None or layout_of(stack.settings, entry.digest) is None:
        say(f"building the image {name}")
        entry = build_image(stack.settings, name)
    bring_images(stack.settings, stack.engine, [FoundImage(entry.digest, name)], say)
    return entry.config
