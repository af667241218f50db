"""One run's installation: servers, an engine, a crew, a repository, and the undisturbed outcomes to compare with."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ledger.connect import Database
from ledger.migrate import migrate
from ledger.reads import JobRow, StepRow, find_batch, find_job, job_steps, unfinished
from ledger.records.step import Offer
from patchyard.celery_app import KEY_PREFIX, Sender, make_app
from scheduler.dispatch import BrokerUnavailable
from tests.chaos.crew import Crew, until
from tests.chaos.jobs import SHAPES, Repository, Shape, Submitter
from tests.chaos.outcomes import (
    Outcome,
    containers_on_engine,
    left_on_engine,
    left_running,
    outcome_of,
    violations,
    volumes_on_engine,
)
from tests.chaos.servers import Postgres, Valkey
from tests.chaos.world import Outside, Patches, Tally, World, outside, tally

LEASE_SECONDS = 3.0
KEEP = "CHAOS_KEEP"
"""With this set, the folder of a run (patchyard-chaos-… among the temporary ones) stays, with the logs of all."""
QUEUES = ("decide", "sandbox", "publish")


@dataclass
class Yard:
    """What a run has. `database_url` is how services reach the ledger; `db` reaches it directly."""

    folder: Path
    engine_host: str
    postgres: Postgres
    valkey: Valkey
    db: Database
    crew: Crew
    jobs: Submitter
    outside: Outside
    worlds: tuple[World, ...]
    undisturbed: dict[str, Outcome] = field(default_factory=dict)

    # -- services ------------------------------------------------------------------------------------------------------

    def worker(self, queue: str, name: str = "", *arguments: str, **environment: str) -> str:
        """Adds a worker of one queue that does one step at a time; its name."""
        name = name or queue
        if queue == "publish":
            environment["PATCHYARD_CREDENTIALS"] = str(self.outside.credentials)
        self.crew.add(name, "worker", "--queues", queue, "--concurrency", "1", *arguments, **environment)
        return name

    def scheduler(self, name: str = "scheduler", **environment: str) -> str:
        """Adds a scheduler; its name."""
        self.crew.add(name, "scheduler", "--capacity", "6", **environment)
        return name

    def one_of_each(self) -> None:
        """A scheduler and a worker for each queue, ready."""
        self.scheduler()
        for queue in QUEUES:
            self.worker(queue)
        self.crew.ready()

    def heal(self) -> None:
        """What a test that failed has left stopped or down goes on."""
        for server in (self.postgres.server, self.valkey.server):
            server.resume()
            if server.is_down:
                server.start()
        for name, member in self.crew.members.items():
            if member.has_stopped():
                self.crew.kill(name)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def submit(self, *shapes: Shape, max_parallel: int | None = None) -> list[str]:
        """One batch; the references of its jobs."""
        return self.jobs.submit(*shapes, max_parallel=max_parallel)

    def job(self, ref: str) -> JobRow:
        return find_job(self.db, ref)

    def steps(self, ref: str) -> list[StepRow]:
        return job_steps(self.db, self.job(ref).id)

    def wait_for_end(self, refs: Iterable[str], seconds: float = 120.0) -> None:
        """Waits until all these jobs have ended."""
        batches = {find_batch(self.db, ref.partition("/")[0]).id for ref in refs}
        until(lambda: not any(unfinished(self.db, batch) for batch in batches), seconds, f"{', '.join(refs)} ended")

    def learn(self, shapes: Iterable[Shape] = SHAPES) -> None:
        """Runs shapes that were not run yet without any fault, and keeps how they end."""
        new = list({shape.name: shape for shape in shapes if shape.name not in self.undisturbed}.values())
        if not new:
            return
        refs = self.submit(*new)
        self.wait_for_end(refs)
        for shape, ref in zip(new, refs, strict=True):
            outcome = outcome_of(self.db, ref)
            assert outcome.reason == shape.reason, f"{shape.name} ended with {outcome.reason}"
            assert violations(self.db, [ref], {}) == []
            self.undisturbed[shape.name] = outcome

    def right_outcomes(self, refs: Iterable[str]) -> Mapping[str, Outcome]:
        """For each job, the undisturbed outcome of its shape."""
        return {ref: self.undisturbed[self.jobs.shape_of[ref].name] for ref in refs}

    def tallies(self, refs: Iterable[str]) -> list[Tally]:
        """The effects of these jobs, world by world."""
        right = self.right_outcomes(refs)
        verified = [(ref, self.jobs.shape_of[ref]) for ref in right if right[ref].state == "completed"]
        others = [ref for ref in right if right[ref].state != "completed"]
        return [tally(world, verified, others) for world in self.worlds]

    def violations(self, refs: Iterable[str], retried: Collection[str] = ()) -> list[str]:
        """What is wrong with these jobs, with their effects, and on the engine; the `retried` may have done more."""
        refs = list(refs)
        found = violations(self.db, refs, self.right_outcomes(refs), retried)
        for total in self.tallies(refs):
            found += [f"{ref}: once too often in the world of {total.kind}" for ref in total.duplicated]
            found += [f"{ref}: not in the world of {total.kind}" for ref in total.lost]
        return found + left_on_engine(self.db, self.engine_host, refs)

    def ends_well(self, refs: Iterable[str], seconds: float = 120.0) -> None:
        """Waits for the end of these jobs, and asserts that nothing is wrong with them."""
        refs = list(refs)
        self.wait_for_end(refs, seconds)
        assert self.violations(refs) == []

    # -- the broker ----------------------------------------------------------------------------------------------------

    @cached_property
    def send(self) -> Callable[[int, Any], None]:
        """Sends a hint, true or made up."""
        send = Sender(make_app(self.valkey.url))

        def hint(step: int, queue: Any) -> None:
            offer = Offer.model_construct(step_id=step, queue=queue)
            try:
                send(offer)
            except BrokerUnavailable:  # its connection was from before a restart
                send(offer)

        return hint

    def queued(self, queue: str) -> list[bytes]:
        """The raw messages that wait in a queue."""
        found: Any = self.valkey.client.lrange(KEY_PREFIX + queue, 0, -1)
        return list(found)

    def push(self, queue: str, *items: bytes | str) -> None:
        """Writes raw messages into a queue."""
        if items:
            self.valkey.client.lpush(KEY_PREFIX + queue, *items)


@contextmanager
def open_yard(
    engine_host: str, image: str, *, lease_seconds: float = LEASE_SECONDS, url_for_services: Callable[[str], str] = str
) -> Iterator[Yard]:
    """A yard without members; at its end everything is gone, which is asserted. `url_for_services` may put something
    between the services and the database at the given URL."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="patchyard-chaos-"))
        folder.chmod(0o711)
        if not os.environ.get(KEEP):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = Postgres.made_in(folder)
        stack.callback(postgres.close)
        valkey = Valkey.made_in(folder)
        stack.callback(valkey.close)
        migrate(postgres.url)
        db = stack.enter_context(Database(postgres.url, name="chaos", pool_max=4))
        run = secrets.token_hex(4)
        logs = folder / "logs"
        logs.mkdir()
        crew = Crew(
            logs,
            run,
            {
                "PATCHYARD_HOME": str(folder / "home"),
                "PATCHYARD_DATABASE_URL": url_for_services(postgres.url),
                "PATCHYARD_BROKER_URL": valkey.url,
                "PATCHYARD_DOCKER_HOST": engine_host,
                "PATCHYARD_LEASE_SECONDS": str(lease_seconds),
                "PATCHYARD_CRASH_POINTS": "1",
            },
        )
        repository = Repository.made_in(folder)
        out = stack.enter_context(outside(folder, repository))
        jobs = Submitter(db, repository, image, out.publish)
        volumes, containers = volumes_on_engine(engine_host), containers_on_engine(engine_host)
        yard = Yard(folder, engine_host, postgres, valkey, db, crew, jobs, out, (Patches(db), *out.worlds()))
        try:
            yield yard
        finally:
            crew.close()
        left = left_running(run)
        left += [f"the container {name} is left" for name in containers_on_engine(engine_host) - containers]
        left += [f"the volume {name} is left" for name in volumes_on_engine(engine_host) - volumes]
        assert left == []
