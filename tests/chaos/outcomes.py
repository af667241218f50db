"""How jobs ended, and what must hold of every run, looked at from outside of all services.

A run is right when each job ended as the undisturbed job of its shape did: in the same state for the same reason, with
the same tree and the same patch, after the same number of turns, calls and verifications; when the ledger's books are
in order; and when nothing is left on the engine or among the processes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docker import APIClient

from ledger.afterwards import audit_job
from ledger.connect import Database
from ledger.events import read_events
from ledger.reads import find_job, job_agents, job_sandboxes, job_steps
from ledger.records.budget import RESOURCES
from ledger.records.job import TERMINAL
from tests.chaos.crew import TAG

_ONCE = ("decision", "model_failed", "action_intended", "tool_result", "verification", "published", "job_ended")
"""Kinds of events that stand for something done; however often a step was tried, each happens so often and not more."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `done` counts what was done in it, `turns` and `calls` are what its account says of them."""

    state: str
    reason: str | None
    tree: str
    patch: str | None
    files_changed: int | None
    done: Mapping[str, int]
    turns: int
    calls: int


def outcome_of(db: Database, ref: str) -> Outcome:
    """The outcome of a job as the ledger has it now."""
    job = find_job(db, ref)
    [agent] = job_agents(db, job.id)
    kinds = Counter(event.kind for event in read_events(db, job.id))
    spent = agent.account.spent
    return Outcome(
        state=job.state,
        reason=job.reason,
        tree=job.head_tree,
        patch=job.patch_sha256,
        files_changed=job.files_changed,
        done={kind: kinds[kind] for kind in _ONCE},
        turns=spent.steps,
        calls=spent.tool_calls,
    )


def violations(
    db: Database, refs: Iterable[str], undisturbed: Mapping[str, Outcome], retried: Collection[str] = ()
) -> list[str]:
    """What is wrong with these jobs; `undisturbed` are the outcomes of jobs to which nothing was done.

    A job that was `retried` has done, and was granted, more than once; it still has to end as it should.
    """
    found = []
    for ref in refs:
        found += [f"{ref}: {what}" for what in _of_job(db, ref, undisturbed.get(ref), ref in retried)]
    return found


def _of_job(db: Database, ref: str, right: Outcome | None, retried: bool) -> list[str]:
    job = find_job(db, ref)
    found = [f"{finding.finding}: {finding.detail}" for finding in audit_job(db, job.id)]
    if job.state not in TERMINAL:
        found.append(f"has not ended: {job.state}")
    found += _differences(outcome_of(db, ref), right, ("done", "turns", "calls") if retried else ())
    for agent in job_agents(db, job.id):
        account = agent.account
        for name in RESOURCES:
            granted, spent, held = (getattr(part, name) for part in (account.granted, account.spent, account.held))
            if spent + held > granted:
                found.append(f"{spent} + {held} of {granted} {name}")
            if granted > getattr(job.spec.budget.amounts(), name) and not retried:
                found.append(f"{granted} {name} granted, and the budget is {job.spec.budget}")
    done = Counter(event.step_id for event in read_events(db, job.id) if event.kind == "step_done")
    found += [f"step {step} was done {times} times" for step, times in done.items() if times > 1]
    found += [f"step {step.id} is {step.state}" for step in job_steps(db, job.id) if step.state in ("ready", "leased")]
    return found


def _differences(seen: Outcome, right: Outcome | None, but: Collection[str]) -> list[str]:
    if right is None:
        return []
    return [
        f"{name} is {getattr(seen, name)!r}, undisturbed it is {getattr(right, name)!r}"
        for name in Outcome.__dataclass_fields__
        if name not in but and getattr(seen, name) != getattr(right, name)
    ]


def left_on_engine(db: Database, host: str, refs: Iterable[str]) -> list[str]:
    """Containers of these jobs that the engine still has, by the names that the ledger gave them."""
    ours = {row.name for ref in refs for row in job_sandboxes(db, find_job(db, ref).id)}
    return [f"the container {name} is left" for name in sorted(containers_on_engine(host) & ours)]


def containers_on_engine(host: str) -> set[str]:
    """The names of all sandboxes that the engine has, whether or not a ledger knows of them."""
    client = APIClient(base_url=host)
    try:
        names = {name.removeprefix("/") for row in client.containers(all=True) for name in row["Names"]}
    finally:
        client.close()
    return {name for name in names if name.startswith("patchyard-")}


def volumes_on_engine(host: str) -> set[str]:
    """The names of all volumes that the engine has."""
    client = APIClient(base_url=host)
    try:
        return {volume["Name"] for volume in client.volumes()["Volumes"] or ()}
    finally:
        client.close()


def left_running(run: str) -> list[str]:
    """Processes of a crew that is closed."""
    mark = f"{TAG}={run}".encode()
    numbers = [entry for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [f"the process {entry.name} is left" for entry in numbers if mark in _variables(entry)]


def _variables(entry: os.DirEntry[str]) -> list[bytes]:
    try:
        return Path(entry.path, "environ").read_bytes().split(b"\0")
    except OSError:
        return []
