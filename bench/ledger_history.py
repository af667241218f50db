"""Fills a ledger with a past of any size in seconds, so that what a step costs can be seen to depend on none.

The rows are those that a finished job leaves, in sizes that are common: spec, agent, account, ten steps with input and
result, actions, removed sandboxes, 23 events with hashes. Only the hashes are made up; see `ledger_history.sql`.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

import psycopg

from bench.ledger_jobs import job_spec

STEPS_A_JOB = 10
_SQL = Path(__file__).with_suffix(".sql")


def fill_history(url: str, steps: int) -> None:
    """Adds `steps` done steps (a multiple of STEPS_A_JOB), with all that goes with them, and tells the planner."""
    spec = json.dumps(job_spec("past", 1).plain()).replace("'", "''")
    script = Template(_SQL.read_text()).substitute(steps=steps, spec=f"'{spec}'")
    with psycopg.connect(url) as connection:
        connection.execute(script.encode())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (FREEZE, ANALYZE)")
        connection.execute("CHECKPOINT")
