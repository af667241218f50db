"""DBOS's half of the ledger's benchmark: workflows whose steps do nothing. Runs in an environment of its own.

`python ledger_dbos.py WORKFLOWS STEPS THREADS`, with the database's URL in BENCH_DATABASE_URL; prints one JSON object.
DBOS runs a workflow's steps in the process that started it, one after another, and writes each outcome in PostgreSQL.
"""

from __future__ import annotations

import json
import os
import sys
import time

from dbos import DBOS  # type: ignore[import-not-found]


@DBOS.step()  # type: ignore[untyped-decorator]
def noop(number: int) -> dict[str, object]:
    """One durable step; its result is as large as patchyard's."""
    usage = {"input_tokens": 1_800, "output_tokens": 120, "cost_microusd": 6_000}
    return {"kind": "plan", "text": "Nothing to do yet.", "usage": usage, "number": number}


@DBOS.workflow()  # type: ignore[untyped-decorator]
def turns(steps: int) -> int:
    """As many steps, one after another."""
    for number in range(steps):
        noop(number)
    return steps


def main() -> None:
    """Warm up, then time all workflows at once."""
    workflows, steps, threads = map(int, sys.argv[1:4])
    DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["BENCH_DATABASE_URL"],
            "max_executor_threads": threads,
            "sys_db_pool_size": threads + 2,
            "log_level": "WARNING",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    try:
        for handle in [DBOS.start_workflow(turns, 3) for _ in range(threads)]:
            handle.get_result()
        began = time.monotonic()
        done = sum(handle.get_result() for handle in [DBOS.start_workflow(turns, steps) for _ in range(workflows)])
        seconds = time.monotonic() - began
    finally:
        DBOS.destroy()
    print(json.dumps({"done": done, "seconds": seconds}))


if __name__ == "__main__":
    main()
