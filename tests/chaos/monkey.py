"""The monkey: for a bounded time, faults of all kinds, chosen by a seed, while batches run.

Which kinds of faults come in which order, and after which pauses, is drawn from a generator of its own, so that a seed
gives the same plan every time; whom they meet, and at what, is up to the machine. Everything that it stops it lets go
on again, and at the end it heals all and waits for the jobs. A job whose step has used up its attempts is started anew,
as its operator would, and has to end well then.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psycopg

from ledger.afterwards import retry_job
from ledger.events import read_events
from ledger.faults import CRASH_POINTS
from ledger.reads import StepRow, find_batch, find_job, job_steps, unfinished
from ledger.steps import MAX_ATTEMPTS
from tests.chaos.jobs import SHAPES
from tests.chaos.proxy import Cut, Proxy, When
from tests.chaos.yard import LEASE_SECONDS, QUEUES, Yard

MINUTES, SEED, RESULTS = "CHAOS_MINUTES", "CHAOS_SEED", "CHAOS_RESULTS"
"""Variables that say how long, which plan, and the file for what came of it."""
WORKERS = tuple(f"{queue}-{number}" for queue in QUEUES for number in (1, 2))
SCHEDULERS = ("scheduler-1", "scheduler-2")
_AT_ONCE = 8
_WEIGHTS = [3 if shape.to != "patch" else 1 for shape in SHAPES]
"""Jobs whose effects leave the ledger are what most can go wrong with."""
_END_SECONDS = 600.0
_LOOK_SECONDS = 0.4
_WRITES = (
    "ledger.lease_step(",
    "ledger.intend(",
    "ledger.register_sandbox(",
    "ledger.complete_step(",
    "ledger.complete_step(",
    "ledger.give_back(",
    "ledger.offer_ready(",
)
_REMOTE_FAULTS = ("drop_after", "500_after", "late", "drop_before", "500_before", "429")
# Not `twice`, a proxy that sends a comment again: that one is in the world twice, and nobody could prevent it.
_FORGE_FAULTS = ("drop_after", "500_after", "late", "html_after", "cut_after", "drop_before", "500_before", "429")
# The queue whose workers pass a point, by the point's first word; no word of these: all workers do.
_PASSED_IN = {"decide": "decide", "act": "sandbox", "sandbox": "sandbox", "publish": "publish", "dispatch": "none"}


@dataclass
class Monkey:
    """One run on a yard whose services reach the database by `wire`. `mean_seconds` lie between two faults."""

    yard: Yard
    wire: Proxy
    seed: int
    mean_seconds: float = 1.1
    injected: Counter[str] = field(default_factory=Counter)
    refs: list[str] = field(default_factory=list)
    retried: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plan = random.Random(self.seed)  # noqa: S311  (a seed is the point of it)
        self._random = random.Random(self.seed + 1)  # noqa: S311
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._open: set[int] = set()
        self._database_stands_still = False
        self._cuts: list[Cut] = []
        # Each with its weight: what costs much is done less often.
        self._faults: dict[Callable[[], str | None], int] = {
            self._kill_a_worker: 16,
            self._crash_a_worker: 8,
            self._stop_a_worker: 12,
            self._kill_a_scheduler: 5,
            self._stop_a_scheduler: 3,
            self._restart_the_database: 3,
            self._stop_the_database: 3,
            self._end_connections: 8,
            self._cut_a_commit: 12,
            self._restart_the_broker: 4,
            self._stop_the_broker: 3,
            self._wipe_the_broker: 7,
            self._repeat_messages: 8,
            self._shuffle_messages: 4,
            self._make_up_messages: 4,
            self._spoil_the_remote: 6,
            self._spoil_the_forge: 8,
        }

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Faults for so long; then all is healed, and the jobs have time to end."""
        until = time.monotonic() + seconds
        next_fault = next_look = time.monotonic()
        while (now := time.monotonic()) < until:
            if now >= next_look and not self._database_stands_still:
                self._keep_busy()
                next_look = now + _LOOK_SECONDS
            self._heal(now)
            if now >= next_fault:
                [fault] = self._plan.choices(list(self._faults), list(self._faults.values()))
                pause = self._plan.expovariate(1 / self.mean_seconds)
                if (kind := fault()) is not None:
                    self.injected[kind] += 1
                next_fault = time.monotonic() + pause
            time.sleep(0.05)
        self._heal(float("inf"))
        self._count_what_was_made()
        self.yard.wait_for_end(self.refs, _END_SECONDS)
        self._retry_what_ran_out_of_attempts()

    def _keep_busy(self) -> None:
        self._open = {batch for batch in self._open if unfinished(self.yard.db, batch)}
        waiting = sum(unfinished(self.yard.db, batch) for batch in self._open)
        if waiting < _AT_ONCE:
            refs = self.yard.submit(*self._random.choices(SHAPES, _WEIGHTS, k=self._random.randint(2, 5)))
            self._open.add(find_batch(self.yard.db, refs[0].partition("/")[0]).id)
            self.refs += refs

    def _after(self, seconds: float, heal: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), heal))

    def _heal(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _count_what_was_made(self) -> None:
        """Some faults wait for their moment: those that came are counted."""
        self.injected["commit cut"] = sum(cut.made.is_set() for cut in self._cuts)
        self.injected["death at a crash point"] = sum(member.crashes for member in self.yard.crew.members.values())
        for kind, left in (("remote fails", self.yard.outside.served), ("forge fails", self.yard.outside.forge)):
            self.injected[kind] -= len(left.faults)
            left.faults.clear()

    def _retry_what_ran_out_of_attempts(self) -> None:
        db, right = self.yard.db, self.yard.right_outcomes(self.refs)
        for ref in self.refs:
            job = find_job(db, ref)
            worn_out = [step for step in job_steps(db, job.id) if step.attempt >= MAX_ATTEMPTS]
            if worn_out and job.reason != right[ref].reason:
                self.retried[ref] = f"{job.reason}: {self._what_became_of_attempts(job.id, worn_out[-1])}"
                retry_job(db, job.id, by="monkey")
        if self.retried:
            self.yard.wait_for_end(self.refs, _END_SECONDS)

    def _what_became_of_attempts(self, job_id: int, step: StepRow) -> str:
        events = [event for event in read_events(self.yard.db, job_id) if event.step_id == step.id]
        ends = [
            event.body.get("why") or "its lease ran out"
            for event in events
            if event.kind in ("step_given_back", "lease_expired")
        ]
        return f"{step.kind} step, attempts: {'; '.join(ends)}"

    # -- processes -----------------------------------------------------------------------------------------------------

    def _free(self, names: Iterable[str]) -> str | None:
        """One of the members whose process takes work and was not stopped."""
        members = self.yard.crew.members
        found = [name for name in names if members[name].process and not members[name].stopped]
        return self._random.choice(found) if found else None

    def _kill_a_worker(self) -> str | None:
        if (name := self._free(WORKERS)) is None:
            return None
        self.yard.crew.members[name].renamed = self._random.random() < 0.5
        self.yard.crew.kill(name)
        return "worker killed"

    def _crash_a_worker(self) -> str | None:
        """Kills it, and lets its successor die at a point of its own choice."""
        if (name := self._free(WORKERS)) is None:
            return None
        queue = name.partition("-")[0]
        points = [point for point in CRASH_POINTS if _PASSED_IN.get(point.partition(".")[0], queue) == queue]
        point = f"{self._random.choice(points)}:{self._random.randint(1, 3)}"
        self.yard.crew.members[name].once = {"PATCHYARD_CRASH": point}
        self.yard.crew.kill(name)
        return "worker killed"

    def _kill_a_scheduler(self) -> str | None:
        if (name := self._free(SCHEDULERS)) is None:
            return None
        self.yard.crew.kill(name)
        return "scheduler killed"

    def _stop_a_worker(self) -> str | None:
        return self._stop(self._free(WORKERS), "worker stopped beyond its lease")

    def _stop_a_scheduler(self) -> str | None:
        return self._stop(self._free(SCHEDULERS), "scheduler stopped")

    def _stop(self, name: str | None, kind: str) -> str | None:
        if name is None:
            return None
        self.yard.crew.stop(name)
        self._after(LEASE_SECONDS * self._random.uniform(1.2, 2.5), lambda: self.yard.crew.go_on(name))
        return kind

    # -- servers -------------------------------------------------------------------------------------------------------

    def _restart_the_database(self) -> str:
        self.yard.postgres.restart()
        self._database_stands_still = False
        return "database restarted"

    def _stop_the_database(self) -> str | None:
        """Other faults go on meanwhile, but for those that have to ask the ledger."""
        if self._database_stands_still:
            return None
        self._database_stands_still = True
        self.yard.postgres.server.pause()
        self._after(self._random.uniform(0.5, 2) * LEASE_SECONDS, self._let_the_database_go_on)
        return "database stopped"

    def _let_the_database_go_on(self) -> None:
        self.yard.postgres.server.resume()
        self._database_stands_still = False

    def _end_connections(self) -> str | None:
        if self._database_stands_still:
            return None
        with psycopg.connect(self.yard.postgres.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'chaos'"
            )
        return "connections ended"

    def _cut_a_commit(self) -> None:
        said = self._random.choice(_WRITES)
        when: When = "before" if self._random.random() < 0.5 else "after"
        self._cuts.append(self.wire.cut(said, when, self._random.randint(1, 3)))

    def _restart_the_broker(self) -> str:
        self.yard.valkey.restart()
        return "broker restarted"

    def _stop_the_broker(self) -> str:
        self.yard.valkey.server.pause()
        self._after(self._random.uniform(1, 7), self.yard.valkey.server.resume)
        return "broker stopped"

    def _wipe_the_broker(self) -> str:
        self.yard.valkey.server.resume()
        self.yard.valkey.wipe()
        return "broker wiped"

    # -- messages ------------------------------------------------------------------------------------------------------

    def _repeat_messages(self) -> str | None:
        if self._database_stands_still:
            return None
        self.yard.valkey.server.resume()
        for ref in self._random.choices(self.refs, k=3):
            for step in self.yard.steps(ref):
                self.yard.send(step.id, step.queue)
        return "messages repeated"

    def _shuffle_messages(self) -> str:
        self.yard.valkey.server.resume()
        for queue in QUEUES:
            waiting = self.yard.queued(queue)[:20]
            self.yard.push(queue, *self._random.sample(waiting, len(waiting)))
        return "messages repeated in another order"

    def _make_up_messages(self) -> str:
        self.yard.valkey.server.resume()
        for queue in QUEUES:
            self.yard.send(self._random.randrange(1, 2**40), queue)
            self.yard.send(self._random.randrange(1, 200), queue)
            self.yard.push(queue, "garbage", '{"body": "W10=", "headers": {}}')
        return "messages made up"

    # -- the world outside ---------------------------------------------------------------------------------------------

    def _spoil_the_remote(self) -> str:
        self.yard.outside.served.faults.append(self._random.choice(_REMOTE_FAULTS))
        return "remote fails"

    def _spoil_the_forge(self) -> str:
        self.yard.outside.forge.faults.append(self._random.choice(_FORGE_FAULTS))
        return "forge fails"
