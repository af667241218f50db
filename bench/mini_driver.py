"""Runs a batch with mini-swe-agent, as its own benchmark runner does, and times it.

This file is run by the Python of the environment that mini-swe-agent is installed in, and by nothing else: it reads a
plan (JSON) from its first argument and writes what it saw to its second. The loop is `process_instance` of
`minisweagent.run.benchmarks.swebench` in a thread pool, as its `main` has it, with its own agent, its own Docker
environment and its own deterministic model; its data set loader and its screen are left out. The clock starts when
everything is imported and stops when the last result is written.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from minisweagent.environments.docker import DockerEnvironment  # type: ignore[import-not-found, unused-ignore]
from minisweagent.models.test_models import make_output  # type: ignore[import-not-found, unused-ignore]
from minisweagent.run.benchmarks.swebench import process_instance  # type: ignore[import-not-found, unused-ignore]
from minisweagent.run.benchmarks.utils.batch_progress import (  # type: ignore[import-not-found, unused-ignore]
    RunBatchProgressManager,
)

_started_ms: list[float] = []
_acted_ms: list[list[float]] = []
_lock = threading.Lock()


class TimedDockerEnvironment(DockerEnvironment):  # type: ignore[misc, unused-ignore]
    """mini-swe-agent's own Docker environment with a stopwatch."""

    def __init__(self, **settings: Any) -> None:
        self._acts: list[float] = []
        began = time.monotonic()
        super().__init__(**settings)
        with _lock:
            _started_ms.append(_since_ms(began))
            _acted_ms.append(self._acts)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> Any:
        began = time.monotonic()
        try:
            return super().execute(action, cwd, timeout=timeout)
        finally:
            self._acts.append(_since_ms(began))


def _since_ms(began: float) -> float:
    return (time.monotonic() - began) * 1000


def _configuration(plan: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    outputs = [make_output("", [{"command": command}], cost=0.0) for command in job["commands"]]
    return {
        "model": {"model_class": "deterministic", "model_name": "deterministic", "outputs": outputs},
        "environment": {
            "environment_class": f"{__name__}.{TimedDockerEnvironment.__name__}",
            "image": plan["image"],
            "cwd": plan["cwd"],
            "run_args": plan["run_args"],
        },
        "agent": {"system_template": "You repair code.", "instance_template": "{{task}}"},
    }


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Does all jobs of `plan` and returns the wall clock and each job's outcome."""
    folder = Path(plan["output"])
    folder.mkdir(parents=True)
    progress = RunBatchProgressManager(len(plan["jobs"]))
    began_at, began = time.time(), time.monotonic()
    with ThreadPoolExecutor(max_workers=plan["threads"]) as pool:
        waiting = []
        for job in plan["jobs"]:
            instance = {"instance_id": job["id"], "problem_statement": plan["issue"], "image_name": plan["image"]}
            waiting.append(pool.submit(process_instance, instance, folder, _configuration(plan, job), progress))
        for future in waiting:
            future.result()
    seconds = time.monotonic() - began
    return {
        "began_at": began_at,
        "seconds": seconds,
        "start_ms": _started_ms,
        "action_ms": _acted_ms,
        "outcomes": {job["id"]: _outcome(folder, job["id"]) for job in plan["jobs"]},
    }


def _outcome(folder: Path, job_id: str) -> dict[str, Any]:
    info = json.loads((folder / job_id / f"{job_id}.traj.json").read_text())["info"]
    return {"exit_status": info["exit_status"], "submission": info["submission"]}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
