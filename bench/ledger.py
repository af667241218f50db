"""What durable steps cost: patchyard's ledger beside Celery alone, DBOS and Procrastinate, on the same two servers.

    python -m bench.ledger

All systems do nothing, one worker process each with the same number of threads, and take turns, so that a machine that
slows down slows all. patchyard runs on three ledgers, with 1,000, 100,000 and 1,000,000 steps of history: what a step
costs must not depend on it. Results go to `bench/results/ledger.json` and, as a table, to `bench/results/ledger.md`.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer

from bench import ledger_rivals as rivals
from bench import machine
from bench.figures import percentile
from bench.ledger_history import fill_history
from bench.ledger_jobs import job_spec
from bench.ledger_report import ledger_table
from bench.ledger_servers import Servers, Worker, running_scheduler, running_servers, running_worker
from bench.ledger_worker import TASK, bare_app
from bench.ours import say
from ledger.batches import submit_batch
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.migrate import migrate
from ledger.reads import unfinished
from ledger.records.job import BatchSpec
from patchyard.celery_app import Sender, make_app

RESULTS = Path(__file__).with_name("results")
TURNS = 60
BARE_BROKER, OUR_BROKER, FIRST_IDLE_BROKER = 1, 2, 3
_names = count(1)


@dataclass(frozen=True)
class Bench:
    """Everything that runs take: the servers, a ledger for each size of history, the rivals' Pythons and databases."""

    servers: Servers
    threads: int
    ledgers: dict[int, str]
    pythons: dict[str, Path]
    databases: dict[str, str]
    seen: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def prepare(servers: Servers, threads: int, sizes: list[int], rival_folder: Path | None) -> Bench:
    """Installs the rivals and fills the ledgers."""
    pythons = rivals.environments(rival_folder)
    ledgers = {}
    for size in sizes:
        ledgers[size] = servers.database(f"ledger_{size}")
        migrate(ledgers[size])
        began = time.monotonic()
        fill_history(ledgers[size], size)
        say(f"{size:,} steps of history in {time.monotonic() - began:.0f} s")
    return Bench(servers, threads, ledgers, pythons, {name: servers.database(f"bench_{name}") for name in pythons})


def steps_a_second(bench: Bench, url: str, *, steps: int) -> float:
    """patchyard's durable steps: jobs of TURNS turns, admitted by the scheduler, done by one worker process."""
    jobs = max(steps // TURNS, 1)
    broker = bench.servers.broker(OUR_BROKER)
    with (
        Database(url, name="bench") as db,
        running_scheduler(bench.servers, capacity=jobs, broker=broker, database=url),
        running_worker(
            bench.servers, "patchyard", threads=bench.threads, mark="d", broker=broker, database=url
        ) as worker,
    ):
        specs = [job_spec(f"job-{number}", TURNS) for number in range(jobs)]
        batch = submit_batch(db, BatchSpec(name=f"bench-{next(_names)}"), specs)
        marks = [worker.next(b"d") for _ in range(jobs * TURNS)]
        if unfinished(db, batch.batch_id):
            raise SystemExit("a hint led to nothing: there are more marks than steps")
    return rivals.rate_of(marks)


def throughput_round(bench: Bench, steps: int) -> None:
    """One turn of each system; patchyard once on each of its ledgers."""
    turns: dict[str, Callable[[], float]] = {
        "celery": lambda: rivals.celery_tasks_a_second(
            bench.servers, bench.servers.broker(BARE_BROKER), tasks=steps * 2, threads=bench.threads
        )
    }
    for size, url in bench.ledgers.items():
        turns[f"patchyard {size}"] = lambda url=url: steps_a_second(bench, url, steps=steps)  # type: ignore[misc]
    turns["dbos"] = lambda: rivals.dbos_steps_a_second(
        bench.pythons["dbos"],
        bench.databases["dbos"],
        workflows=max(steps // TURNS, 1),
        steps=TURNS,
        threads=bench.threads,
    )
    turns["procrastinate"] = lambda: rivals.procrastinate_jobs_a_second(
        bench.pythons["procrastinate"], bench.databases["procrastinate"], jobs=steps, at_once=bench.threads
    )
    for name, measure in turns.items():
        _checkpoint(bench.servers)
        bench.seen["idle share before"].append(machine.idle_share())
        bench.seen[name].append(measure())
        say(f"{name}: {bench.seen[name][-1]:.0f} a second")


def _checkpoint(servers: Servers) -> None:
    """So that no system's run pays for the pages that another's has left."""
    with psycopg.connect(servers.postgres.url(), autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def latencies(bench: Bench, *, rounds: int, samples: int) -> dict[str, list[float]]:
    """Milliseconds from ready to claimed on idle workers, `samples` of each system in turn, `rounds` times.

    From the moment when the step is recorded as ready, or when Celery is asked to send, until work may begin: with a
    lease and a hold in patchyard, in the task's first line in Celery.
    """
    found: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        asks: dict[str, Callable[[], float]] = {"celery": _bare_ask(bench, stack)}
        for number, (size, url) in enumerate(bench.ledgers.items()):
            broker = bench.servers.broker(FIRST_IDLE_BROKER + number)
            asks[f"patchyard {size}"] = _our_ask(bench, stack, url, broker, rounds * samples + 5)
        for ask in asks.values():
            for _ in range(5):
                ask()
        for _ in range(rounds):
            for name, ask in asks.items():
                for _ in range(samples):
                    found[name].append(ask())
                    time.sleep(random.uniform(0.005, 0.03))  # noqa: S311  (no rhythm to fall in with)
    return found


def _bare_ask(bench: Bench, stack: ExitStack) -> Callable[[], float]:
    broker = bench.servers.broker(BARE_BROKER)
    worker = stack.enter_context(
        running_worker(bench.servers, "celery", threads=bench.threads, mark="c", broker=broker)
    )
    app = stack.enter_context(bare_app(broker))
    producer = stack.enter_context(app.producer_pool.acquire())

    def ask() -> float:
        began = time.monotonic_ns()
        app.send_task(TASK, args=[1, "decide"], producer=producer)
        return (worker.next(b"c") - began) / 1e6

    return ask


def _our_ask(bench: Bench, stack: ExitStack, url: str, broker: str, jobs: int) -> Callable[[], float]:
    worker: Worker = stack.enter_context(
        running_worker(bench.servers, "patchyard", threads=bench.threads, mark="c", broker=broker, database=url)
    )
    db = stack.enter_context(Database(url, name="bench"))
    batch = submit_batch(
        db, BatchSpec(name=f"bench-{next(_names)}"), [job_spec(f"job-{number}", 1) for number in range(jobs)]
    )
    send = Sender(make_app(broker))
    left = jobs

    def ask() -> float:
        nonlocal left
        [offer] = admit_jobs(db, capacity=1)
        began = time.monotonic_ns()
        send(offer)
        took = worker.next(b"c") - began
        left -= 1
        while unfinished(db, batch.batch_id) > left:
            time.sleep(0.002)
        return took / 1e6

    return ask


def measure(
    folder: Path, *, rounds: int, steps: int, threads: int, sizes: list[int], samples: int, rival_folder: Path | None
) -> dict[str, Any]:
    """All of it, and everything that was seen."""
    quiet, load = machine.idle_share(), machine.facts()["load_average"]
    with running_servers(folder) as servers:
        bench = prepare(servers, threads, sizes, rival_folder)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            throughput_round(bench, steps)
        waits = latencies(bench, rounds=rounds, samples=samples)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine.facts(), "idle_share_before": quiet, "load_average_before": load},
        "versions": {name: rivals.VERSIONS[name] for name in rivals.VERSIONS},
        "threads": threads,
        "rounds": rounds,
        "steps": steps,
        "samples": rounds * samples,
        "a_second": {name: [round(value, 1) for value in values] for name, values in bench.seen.items()},
        "idle_latency_ms": {
            name: {"p50": percentile(values, 50), "p95": percentile(values, 95)} for name, values in waits.items()
        },
        "summary": summary(bench.seen, waits, sizes),
    }


def summary(seen: dict[str, list[float]], waits: dict[str, list[float]], sizes: list[int]) -> dict[str, Any]:
    """Medians, and the ratios that the targets are about: the middle of the ratios round by round."""
    ours = [f"patchyard {size}" for size in sizes]

    def ratio(name: str, of: str) -> float:
        return round(statistics.median(a / b for a, b in zip(seen[name], seen[of], strict=True)), 3)

    middles = {name: percentile(values, 50) or 0.0 for name, values in waits.items()}
    return {
        "median_a_second": {name: round(statistics.median(values), 1) for name, values in seen.items()},
        "of_celery": {name: ratio(name, "celery") for name in ours},
        "of_dbos": {name: ratio(name, "dbos") for name in ours},
        "of_procrastinate": {name: ratio(name, "procrastinate") for name in ours},
        "of_smallest_history": {name: ratio(name, ours[0]) for name in ours},
        "latency_of_celery": {name: round(middles[name] / middles["celery"], 2) for name in ours},
        "latency_of_smallest_history": {name: round(middles[name] / middles[ours[0]], 2) for name in ours},
    }


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each system.")] = 5,
    steps: Annotated[int, typer.Option(min=200, help="Steps a round; Celery gets twice as many tasks.")] = 3_000,
    threads: Annotated[int, typer.Option(min=1, help="Steps at once in each system's worker.")] = 8,
    history: Annotated[str, typer.Option(help="Steps of history, one ledger for each.")] = "1000,100000,1000000",
    samples: Annotated[int, typer.Option(min=1, help="Latencies of each system a round.")] = 60,
    rival_folder: Annotated[
        Path | None,
        typer.Option("--rivals", help=f"Where the rivals' environments are or go (else ${rivals.VARIABLE})."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = RESULTS,
) -> None:
    """Measure durable steps side by side."""
    folder = Path(tempfile.mkdtemp(prefix="patchyard-bench-"))
    folder.chmod(0o711)
    try:
        seen = measure(
            folder,
            rounds=rounds,
            steps=steps,
            threads=threads,
            sizes=[int(size) for size in history.split(",")],
            samples=samples,
            rival_folder=rival_folder,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "ledger.json").write_text(json.dumps(seen, indent=1) + "\n")
    table = ledger_table(seen)
    (out / "ledger.md").write_text(table)
    print(table)


if __name__ == "__main__":
    typer.run(main)
