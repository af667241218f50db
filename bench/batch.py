"""A batch of small repairs, done by patchyard and by mini-swe-agent in turn, on one engine, in one run.

    python -m bench.batch --jobs 100

Both do the same jobs (`bench.workload`) in the same image in containers held by the same bounds, as many at once as
patchyard has sandboxes. They take turns, so that a machine that slows down slows both. Results go to
`bench/results/batch.json`, and as a table for people to `bench/results/batch.md`.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import hardening, machine, ours, rival
from bench.figures import Run
from bench.folder import measurement_folder
from bench.report import batch_table
from bench.workload import prepare_round
from ledger.errors import Unfit

IMAGE = "sandbox-python"
RESULTS = Path(__file__).with_name("results")
WARM_UP_JOBS = 4


def measure(
    folder: Path, *, jobs: int, rounds: int, slots: int | None, home: Path, rival_folder: Path | None
) -> dict[str, Any]:
    """Runs `rounds` rounds of each system in turn and returns everything that was seen."""
    python = rival.environment(rival_folder)
    require_docker_command()
    quiet = machine.idle_share()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    with ours.running_stack(home, slots, "docker") as stack:
        image = ours.image_reference(stack, IMAGE)
        limits = hardening.run_args(folder, stack.engine, stack.settings.sandbox_runtime)
        slots_used = stack.settings.sandbox_slots

        def other(name: str, number: int) -> Run:
            mine = folder / f"rival-{name}"
            work = prepare_round(mine / "work", f"bench-{stamp}-{name}", number)
            seen = rival.run_round(
                python, mine, work, image=image, run_args=limits, threads=slots_used, docker_host=stack.engine
            )
            rival.wait_until_cleared(stack.engine)
            return seen

        runs = _in_turn((other, _patchyard(stack, folder, stamp)), jobs, rounds)
        facts = machine.facts(stack.engine)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**facts, "idle_share_before": quiet},
        "jobs": jobs,
        "rounds": rounds,
        "slots": slots_used,
        "image": image,
        "run_args": [argument.replace(str(folder), "…") for argument in limits],
        "runs": [run.plain() for run in runs],
        "summary": summary(runs),
        "without_engine": _without_engine(home, slots, folder, stamp, jobs),
    }


System = Callable[[str, int], Run]
"""Does a round of so many jobs under that name."""


def _patchyard(stack: ours.Stack, folder: Path, stamp: str) -> System:
    backend = stack.settings.sandbox_backend

    def run(name: str, number: int) -> Run:
        return ours.run_round(stack, prepare_round(folder / f"{backend}-{name}", f"{backend}-{stamp}-{name}", number))

    return run


def _in_turn(systems: Sequence[System], jobs: int, rounds: int) -> list[Run]:
    for system in systems:
        system("warm-up", WARM_UP_JOBS)
    runs: list[Run] = []
    for number in range(1, rounds + 1):
        for system in systems:
            began = machine.busy_cpu_seconds()
            run = system(f"round-{number}", jobs)
            runs.append(replace(run, busy_cpu_seconds=machine.busy_cpu_seconds() - began))
            say_run(runs[-1])
    return runs


def _without_engine(home: Path, slots: int | None, folder: Path, stamp: str, jobs: int) -> dict[str, Any]:
    """One round on an OCI runtime that patchyard drives itself; mini-swe-agent has nothing like it to compare with."""
    try:
        with ours.running_stack(home, slots, "oci") as stack:
            ours.image_reference(stack, IMAGE)
            return _in_turn((_patchyard(stack, folder, stamp),), jobs, 1)[0].plain()
    except Unfit as unfit:
        ours.say(f"not measured without an engine: {unfit.message}")
        return {"not_measured": unfit.message}


def summary(runs: list[Run]) -> dict[str, Any]:
    """Each system over all of its rounds, and patchyard's share of the other's throughput, round by round."""
    by_system: dict[str, list[Run]] = {}
    for run in runs:
        by_system.setdefault("patchyard" if run.system.startswith("patchyard") else "rival", []).append(run)
    pairs = zip(by_system["patchyard"], by_system["rival"], strict=True)
    ratios = [mine.jobs_per_minute / other.jobs_per_minute for mine, other in pairs]
    return {
        "ratio": round(statistics.mean(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        **{
            system: {
                "jobs_per_minute": round(statistics.mean(run.jobs_per_minute for run in of), 1),
                "slot_ms_per_tool_call": round(statistics.mean(run.slot_ms_per_tool_call for run in of), 1),
                "cpu_ms_per_job": round(statistics.mean(run.busy_cpu_seconds * 1000 / run.jobs for run in of), 1),
                "succeeded": sum(run.succeeded for run in of),
                "jobs": sum(run.jobs for run in of),
            }
            for system, of in by_system.items()
        },
    }


def require_docker_command() -> None:
    """mini-swe-agent drives the engine through the docker command."""
    if shutil.which("docker") is None:
        raise SystemExit("the docker command is missing, which mini-swe-agent needs; apt-get install docker.io")


def say_run(run: Run) -> None:
    """One line on stderr."""
    pace = f"{run.jobs_per_minute:.1f} jobs/min"
    ours.say(f"{run.round} {run.system}: {run.succeeded}/{run.jobs} in {run.seconds:.1f} s, {pace}")


def main(
    jobs: Annotated[int, typer.Option(min=1, help="Jobs a round.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each system.")] = 2,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Sandboxes at once; patchyard's default if not given.")
    ] = None,
    rival_folder: Annotated[
        Path | None,
        typer.Option("--rival", help=f"Where mini-swe-agent's environment is or goes (else ${rival.VARIABLE})."),
    ] = None,
    home: Annotated[Path | None, typer.Option(help="A PATCHYARD_HOME to use and keep; else a new one.")] = None,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = RESULTS,
) -> None:
    """Measure patchyard and mini-swe-agent side by side."""
    with measurement_folder() as folder:
        seen = measure(
            folder, jobs=jobs, rounds=rounds, slots=slots, home=home or folder / "home", rival_folder=rival_folder
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "batch.json").write_text(json.dumps(seen, indent=1) + "\n")
    table = batch_table(seen)
    (out / "batch.md").write_text(table)
    print(table)
    short = [run for run in seen["runs"] if run["succeeded"] < run["jobs"]]
    if short:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
