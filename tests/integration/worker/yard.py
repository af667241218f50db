"""A ledger, a broker, a repository, and real worker and scheduler processes that a test starts, kills and outlives."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import redis

from ledger.batches import submission
from ledger.connect import Database
from ledger.events import broken_links, read_events
from ledger.reads import JobRow, StepRow, find_job, job_agents, job_steps
from ledger.records.budget import Amounts
from ledger.records.job import BatchSpec, JobSpec
from ledger.records.source import SourceRef
from ledger.records.step import Offer
from patchyard.celery_app import KEY_PREFIX, Sender, make_app

PATIENCE_SECONDS = 30.0
_names = itertools.count(1)


class Process:
    """A `patchyard` command in a session of its own, its log in a file."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen, self.log = popen, log

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged; lines of others than ours are {"event": the line}."""
        return [_parsed(line) for line in self.log.read_text().splitlines() if line.strip()]

    def says(self, event: str) -> bool:
        """Whether it has logged this event."""
        return any(line.get("event") == event for line in self.lines())

    def kill(self) -> None:
        """SIGKILL."""
        self.popen.kill()
        self.popen.wait()

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM; the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(seconds)


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"event": line}
    return value if isinstance(value, dict) else {"event": line}


def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


class Yard:
    """One test's installation. `lease_seconds` is short, so that deaths are noticed within a test's patience."""

    def __init__(self, db: Database, broker_url: str, home: Path, repository: tuple[Path, str, str]) -> None:
        self.db, self.home, self.repository = db, home, repository
        self.processes: list[Process] = []
        self.use_broker(broker_url)

    def use_broker(self, url: str) -> None:
        """Use another broker for what is started from now on."""
        self.broker_url = url
        self.broker = redis.Redis.from_url(url)
        self._sender = Sender(make_app(url))

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self, *arguments: str, ready: str, **environment: str) -> Process:
        """Start a command and wait until it has logged `ready`."""
        log = self.home / f"{arguments[0]}-{next(_names)}.log"
        settings = {
            "PATCHYARD_HOME": str(self.home),
            "PATCHYARD_DATABASE_URL": self.db.url,
            "PATCHYARD_BROKER_URL": self.broker_url,
            "PATCHYARD_DOCKER_HOST": os.environ.get("DOCKER_HOST", ""),
            "PATCHYARD_LEASE_SECONDS": "1.5",
        }
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", "patchyard.cli", *arguments],
                env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"} | settings | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        process = Process(popen, log)
        self.processes.append(process)
        until(lambda: process.says(ready) or popen.poll() is not None)
        assert process.says(ready), log.read_text()
        return process

    def worker(self, queues: str = "decide,sandbox,publish", *arguments: str, **environment: str) -> Process:
        """Start a worker."""
        return self.start("worker", "--queues", queues, *arguments, ready="worker_ready", **environment)

    def scheduler(self, *, ready: str = "lead_taken", **environment: str) -> Process:
        """Start a scheduler."""
        return self.start("scheduler", ready=ready, **environment)

    def close(self) -> None:
        """Kill whatever still runs."""
        for process in self.processes:
            process.kill()
        self.broker.close()

    # -- the broker ----------------------------------------------------------------------------------------------------

    def send(self, step_id: int, queue: Any = "decide") -> None:
        """Send a hint, true or made up."""
        self._sender(Offer.model_construct(step_id=step_id, queue=queue))

    def push_raw(self, queue: str, *items: str | bytes) -> None:
        """Write bytes into a queue's list, as somebody might who can."""
        self.broker.lpush(KEY_PREFIX + queue, *items)

    def waiting(self, queue: str) -> int:
        """How many messages wait in a queue."""
        return int(self.broker.llen(KEY_PREFIX + queue))  # type: ignore[arg-type]

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def submit(self, *replays: Iterable[dict[str, Any]], **fields: Any) -> list[str]:
        """Submit one job for each replay and return their references."""
        name = f"batch-{next(_names)}"
        with submission(self.db) as opened:
            for number, lines in enumerate(replays):
                data = "".join(json.dumps(line) + "\n" for line in lines).encode()
                opened.add(self._job(f"job-{number}", opened.put_object("replay", data), fields))
            opened.finish(BatchSpec(name=name))
        return [f"{name}/job-{number}" for number in range(len(replays))]

    def _job(self, key: str, replay_sha256: str, fields: dict[str, Any]) -> JobSpec:
        path, commit, tree = self.repository
        values: dict[str, Any] = {
            "key": key,
            "source": SourceRef(kind="git", location=str(path)),
            "base_commit": commit,
            "base_tree": tree,
            "issue": "It is broken.",
            "image": "sha256:" + "a" * 64,
            "image_name": "sandbox-python",
            "model": "replay:replay.jsonl",
            "replay_sha256": replay_sha256,
        }
        return JobSpec.model_validate(values | fields)

    def job(self, ref: str) -> JobRow:
        """The job as it is now."""
        return find_job(self.db, ref)

    def steps(self, ref: str) -> list[StepRow]:
        """The job's steps in order."""
        return job_steps(self.db, self.job(ref).id)

    def events(self, ref: str) -> list[str]:
        """The kinds of the job's events, in order."""
        return [event.kind for event in read_events(self.db, self.job(ref).id)]

    def ended(self, *refs: str) -> bool:
        """Whether all these jobs have ended."""
        return all(self.job(ref).finished_at is not None for ref in refs)

    def wait_for_end(self, *refs: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until all these jobs have ended."""
        until(lambda: self.ended(*refs), seconds)

    def in_order(self, ref: str) -> None:
        """Assert what must hold of every job that ended: a whole chain, no hold left, each step done once."""
        job = self.job(ref)
        assert broken_links(self.db, job.id) == []
        [agent] = job_agents(self.db, job.id)
        assert agent.account.held == Amounts()
        assert agent.account.granted == agent.account.spent + agent.account.free
        done = [event.step_id for event in read_events(self.db, job.id) if event.kind == "step_done"]
        assert len(done) == len(set(done))
