"""What the ledger is measured against: Celery alone, DBOS and Procrastinate, each at its best and in one process.

DBOS and Procrastinate go into environments outside of the repository, in fixed versions, which may be kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from bench.ledger_servers import Servers, running_worker
from bench.ledger_worker import TASK, bare_app

VERSIONS = {"dbos": "3.4.0", "procrastinate": "3.10.0"}
VARIABLE = "PATCHYARD_BENCH_LEDGER_RIVALS"


def environments(folder: Path | None) -> dict[str, Path]:
    """The Python of each rival's environment, made in `folder` if it is not there yet."""
    return {name: _environment(folder, name, version) for name, version in VERSIONS.items()}


def _environment(folder: Path | None, name: str, version: str) -> Path:
    chosen = (folder or Path(os.environ.get(VARIABLE) or tempfile.gettempdir())) / f"{name}-{version}"
    python = chosen / "bin" / "python"
    ask = f"import importlib.metadata as m; print(m.version('{name}'))"
    if not python.exists() or _said([str(python), "-c", ask]) != version:
        print(f"installing {name} {version} into {chosen}", file=sys.stderr)
        venv.create(chosen, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{name}=={version}"]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return python


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def celery_tasks_a_second(servers: Servers, broker: str, *, tasks: int, threads: int) -> float:
    """Tasks wait in the queue before the worker starts; the first tenth is not timed."""
    app = bare_app(broker)
    with app.producer_pool.acquire() as producer:
        for number in range(tasks):
            app.send_task(TASK, args=[number, "decide"], producer=producer)
    app.close()
    with running_worker(servers, "celery", threads=threads, mark="d", broker=broker) as worker:
        marks = [worker.next(b"d") for _ in range(tasks)]
    return rate_of(marks)


def rate_of(marks: list[int]) -> float:
    """Marks (nanoseconds) a second, without the first tenth."""
    timed = sorted(marks)[len(marks) // 10 :]
    return (len(timed) - 1) / ((timed[-1] - timed[0]) / 1e9)


def dbos_steps_a_second(python: Path, database: str, *, workflows: int, steps: int, threads: int) -> float:
    """Steps of workflows, as many at once as there are threads."""
    return _driven(python, "ledger_dbos.py", database, str(workflows), str(steps), str(threads))


def procrastinate_jobs_a_second(python: Path, database: str, *, jobs: int, at_once: int) -> float:
    """Jobs that wait before the worker starts."""
    return _driven(python, "ledger_procrastinate.py", database, str(jobs), str(at_once))


def _driven(python: Path, driver: str, database: str, *arguments: str) -> float:
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name(driver)), *arguments],
        env={**os.environ, "BENCH_DATABASE_URL": database},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if done.returncode:
        raise SystemExit(f"{driver} failed:\n{done.stderr[-2000:]}")
    seen = json.loads(done.stdout.splitlines()[-1])
    return float(seen["done"] / seen["seconds"])
