"""mini-swe-agent, the system that patchyard is measured against: installed beside, never into, our own environment.

Its version is fixed, so that a ratio means the same thing later. It goes into a virtual environment outside of the
repository, which may be kept between runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import docker

from bench.figures import Run, percentile
from bench.workload import ISSUE, MOUNTED_SOURCE, TOOL_CALLS, WORKSPACE, Round, commands

VERSION = "2.4.6"
VARIABLE = "PATCHYARD_BENCH_RIVAL"
_DRIVER = Path(__file__).with_name("mini_driver.py")
_CLEARED_SECONDS = 60


def environment(folder: Path | None) -> Path:
    """The Python of a virtual environment with mini-swe-agent in it, made in `folder` if it is not there yet."""
    chosen = folder or Path(os.environ.get(VARIABLE) or Path(tempfile.gettempdir()) / f"mini-swe-agent-{VERSION}")
    python = chosen / "bin" / "python"
    if _installed(python) != VERSION:
        print(f"installing mini-swe-agent {VERSION} into {chosen}", file=sys.stderr)
        venv.create(chosen, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, f"mini-swe-agent=={VERSION}"], check=True, stderr=subprocess.DEVNULL)
    return python


def _installed(python: Path) -> str | None:
    if not python.exists():
        return None
    ask = "import importlib.metadata as m; print(m.version('mini-swe-agent'))"
    answer = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def run_round(
    python: Path, folder: Path, work: Round, *, image: str, run_args: list[str], threads: int, docker_host: str
) -> Run:
    """Does the jobs of `work` and checks that each was submitted with its own repair in the diff.

    `run_args` are the options of `docker run` that harden a container; the repository is mounted read-only beside them.
    """
    mount = ["-v", f"{work.repository}:{MOUNTED_SOURCE}:ro"]
    plan = {
        "image": image,
        "cwd": WORKSPACE,
        "run_args": ["--rm", *run_args, *mount],
        "threads": threads,
        "issue": ISSUE,
        "output": str(folder / "trajectories"),
        "jobs": [{"id": job.key, "commands": commands(job)} for job in work.jobs],
    }
    plan_file, seen_file = folder / "plan.json", folder / "seen.json"
    plan_file.write_text(json.dumps(plan))
    told = {
        "DOCKER_HOST": docker_host,
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "configuration"),
    }
    subprocess.run(
        [str(python), str(_DRIVER), str(plan_file), str(seen_file)],
        check=True,
        env={**os.environ, **told},
        stdout=(folder / "driver.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    seen: dict[str, Any] = json.loads(seen_file.read_text())
    return _figures(work, seen, threads)


def wait_until_cleared(docker_host: str) -> None:
    """Returns when the containers of mini-swe-agent, which it stops in the background, are gone."""
    client = docker.DockerClient(base_url=docker_host)
    try:
        deadline = time.monotonic() + _CLEARED_SECONDS
        while client.containers.list(all=True, filters={"name": "minisweagent-"}):
            if time.monotonic() > deadline:
                raise SystemExit("containers of mini-swe-agent are still there")
            time.sleep(0.2)
    finally:
        client.close()


def _figures(work: Round, seen: dict[str, Any], threads: int) -> Run:
    done = sum(_repaired(seen["outcomes"].get(job.key), job.mark) for job in work.jobs)
    actions = sorted(ms for job in seen["action_ms"] for ms in job)
    return Run(
        system=f"mini-swe-agent {VERSION}",
        round=work.name,
        jobs=len(work.jobs),
        succeeded=done,
        seconds=seen["seconds"],
        slots=threads,
        tool_calls=TOOL_CALLS,
        details={
            "container_start_ms_p50": percentile(seen["start_ms"], 50),
            "container_start_ms_p95": percentile(seen["start_ms"], 95),
            "action_ms_p50": percentile(actions, 50),
            "action_ms_p95": percentile(actions, 95),
        },
    )


def _repaired(outcome: dict[str, Any] | None, mark: str) -> bool:
    return outcome is not None and outcome["exit_status"] == "Submitted" and f"+# {mark}\n" in outcome["submission"]
