"""Procrastinate's half of the ledger's benchmark: jobs that do nothing. Runs in an environment of its own.

`python ledger_procrastinate.py JOBS AT_ONCE`, with the database's URL in BENCH_DATABASE_URL; prints one JSON object.
All jobs are there before the worker starts; the first tenth is not timed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import procrastinate  # type: ignore[import-not-found]

_DEFERRED_AT_ONCE = 1_000
_MARKS: list[float] = []


async def run(jobs: int, at_once: int) -> dict[str, float]:
    """Defers the jobs, works them off, and says how many were timed in how many seconds."""
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(
            conninfo=os.environ["BENCH_DATABASE_URL"], min_size=2, max_size=at_once + 2
        )
    )

    @app.task(queue="bench")  # type: ignore[untyped-decorator]
    async def noop(number: int) -> None:
        _MARKS.append(time.monotonic())

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        for first in range(0, jobs, _DEFERRED_AT_ONCE):
            numbers = range(first, min(first + _DEFERRED_AT_ONCE, jobs))
            await noop.batch_defer_async(*({"number": number} for number in numbers))
        await app.run_worker_async(
            queues=["bench"], concurrency=at_once, wait=False, install_signal_handlers=False, listen_notify=False
        )
    skipped = jobs // 10
    if len(_MARKS) != jobs:
        raise SystemExit(f"{len(_MARKS)} of {jobs} jobs ran")
    return {"done": jobs - 1 - skipped, "seconds": _MARKS[-1] - _MARKS[skipped]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(int(sys.argv[1]), int(sys.argv[2])))))
