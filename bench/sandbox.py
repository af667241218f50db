"""What a sandbox costs: the time around a `true`, and sandboxes a second, one, two and eight at once.

    python -m bench.sandbox

Each way to run a command is measured in turn, round after round, so that a machine that slows down slows all of them.
Ours are measured whole: registration, creation, files, command, report, removal and the proof that nothing is left, and
with every bound; the others are held by the same bounds. Results go to `bench/results/sandbox.json` and `sandbox.md`.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import hardening, machine, streaming
from bench.figures import percentile
from images.oci_layout import Layout, read_layout
from patchyard.image_shelf import build_missing, layout_of, locked_images
from patchyard.local.engine import find_engine, private_engine, wait_until_answers
from patchyard.settings import load_settings
from policy.ceilings import Limits
from runners.sandbox.backend import Armed, Backend, SandboxState
from runners.sandbox.docker import DockerBackend
from runners.sandbox.oci import OciBackend
from runners.sandbox.oci.bundle import config
from runners.sandbox.oci.cgroups import read_cgroups
from runners.sandbox.oci.removal import remove_all
from runners.sandbox.oci.runtime import installed
from runners.sandbox.orders import Changes
from runners.sandbox.spec import NetworkRequest, SandboxPlace, SandboxSpec

IMAGE = "sandbox-python"
RESULTS = Path(__file__).with_name("results")
AT_ONCE = (1, 2, 8)
SETTLE_SECONDS = 1.0
RAW_CGROUP = "patchyard-bench-raw"
NO_FILES = [bytes(10240)]
"""An empty tar archive."""

Way = Callable[[], None]
"""Runs one command to its end."""


class Counting:
    """A registry that costs nothing and names sandboxes."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._number, self._lock = prefix, 0, threading.Lock()

    def register(self, place: SandboxPlace) -> str:
        with self._lock:
            self._number += 1
            return f"{self._prefix}-{os.getpid()}-{self._number}"

    def bind(self, name: str, spec: SandboxSpec) -> None:
        return

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        return

    def note_requests(self, place: SandboxPlace, requests: Sequence[NetworkRequest], left_out: int) -> None:
        return


def say(line: str) -> None:
    """A line for whoever waits."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def engine_at_hand() -> Iterator[str]:
    """The address of a container engine: the machine's, else one of our own for the time being."""
    if (host := find_engine()) is not None:
        yield host
        return
    engine = private_engine(Path(tempfile.mkdtemp(prefix="pyb-")))
    engine.prepare()
    with (engine.folder / "engine.log").open("ab") as log:
        process = subprocess.Popen(engine.argv, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until_answers(engine.host, 60)
        yield engine.host
    finally:
        process.terminate()
        process.wait(60)
        engine.remove()


def ours(backend: Backend, layout: Layout) -> Way:
    """A sandbox of ours, from its registration to the proof of its end."""
    if not backend.has_image(layout.manifest_digest):
        backend.load_image(layout.folder)
    spec = SandboxSpec(
        image=layout.manifest_digest, command=("true",), deadline_seconds=60, job_id=1, step_id=1, fence=1
    )

    def once() -> None:
        result = backend.run(spec, NO_FILES)
        assert result.exit_code == 0, result

    return once


class ArmedWay:
    """A command in a sandbox of ours that waits for it. What is started ahead, by `prepare`, is not counted."""

    def __init__(self, backend: Backend, image: str) -> None:
        fields: dict[str, Any] = {"image": image, "job_id": 1, "step_id": 1, "fence": 1}
        self._backend, self._place = backend, SandboxPlace(**fields, armed_seconds=600)
        self._spec = SandboxSpec(**fields, command=("true",), deadline_seconds=60)
        self._waiting: queue.SimpleQueue[Armed] = queue.SimpleQueue()

    def prepare(self, count: int) -> None:
        """Arm as many as will be used."""

        def one(_number: int) -> None:
            made = self._backend.arm(self._place)
            made.arm(NO_FILES, None)
            self._waiting.put(made)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(one, range(count)))
        time.sleep(SETTLE_SECONDS)

    def __call__(self) -> None:
        result = self._waiting.get_nowait().fire(self._spec, Changes(), None)
        assert result.exit_code == 0, result


def docker_command(host: str, *arguments: str) -> Way:
    """The docker command, as a harness calls it."""
    argv = ["docker", "--host", host, *arguments]

    def once() -> None:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    return once


@contextmanager
def warm_container(host: str, options: list[str], image: str) -> Iterator[str]:
    """A container that waits for `docker exec`, held by the same bounds."""
    argv = ["docker", "--host", host, "run", "--detach", *options, image, "sleep", "infinity"]
    name = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield name
    finally:
        subprocess.run(["docker", "--host", host, "rm", "--force", name], capture_output=True, check=True)


def raw_runtime(backend: OciBackend, layout: Layout, folder: Path, name: str) -> Way:
    """`crun run` on our bundle with `true` in the place of PID 1: no files, no report, no proof.

    In a view of the mounts of its own for each call, without the one that crun refuses to see beside version 1.
    """
    spec = SandboxSpec(
        image=layout.manifest_digest, command=("true",), deadline_seconds=60, job_id=1, step_id=1, fence=1
    )
    ground = backend.ground(spec)
    numbers = iter(range(1 << 30))

    def once() -> None:
        number = next(numbers)
        bundle = folder / f"raw-{number}"
        bundle.mkdir()
        text = config(ground, Limits(), ["/usr/bin/true"], f"/{RAW_CGROUP}/{number}")
        (bundle / "config.json").write_text(text)
        run = f"exec {name} --root {folder}/state run --bundle {bundle} raw-{number}"
        hide = "test ! -e /sys/fs/cgroup/unified/cgroup.procs || umount /sys/fs/cgroup/unified; "
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide + run], stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
        shutil.rmtree(bundle)

    return once


def timed(way: Way, count: int, at_once: int) -> tuple[list[float], float]:
    """Milliseconds of each of `count` runs, and the wall clock seconds of all."""

    def once(_number: int) -> float:
        began = time.monotonic()
        way()
        return 1000 * (time.monotonic() - began)

    if isinstance(way, ArmedWay):
        way.prepare(count)
    began = time.monotonic()
    with ThreadPoolExecutor(at_once) as threads:
        took = list(threads.map(once, range(count)))
    return took, time.monotonic() - began


def measure(home: Path, *, count: int, rounds: int, pause_seconds: float) -> dict[str, Any]:
    """All ways in turn, `rounds` times `count` runs of each at each number at once."""
    settings = load_settings(home=home)
    build_missing(settings, [IMAGE], say)
    folder = layout_of(settings, locked_images(settings)[IMAGE].digest)
    assert folder is not None
    layout = read_layout(folder)
    with ExitStack() as stack:
        streamed: dict[str, float] = {}
        ways = _ways(stack, home, layout, streamed)
        for way in ways.values():
            timed(way, 3, 1)
        quiet = machine.idle_share()
        seen: dict[str, dict[int, list[tuple[list[float], float]]]] = {name: {} for name in ways}
        for number in range(1, rounds + 1):
            for at_once in AT_ONCE:
                for name, way in ways.items():
                    time.sleep(pause_seconds)
                    seen[name].setdefault(at_once, []).append(timed(way, max(count, at_once), at_once))
            say(f"round {number} of {rounds} is done")
        facts = machine.facts()
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**facts, "idle_share_before": quiet},
        "count": count,
        "rounds": rounds,
        "ways": {name: {str(at): _figures(runs) for at, runs in per.items()} for name, per in seen.items()},
        "ratios": _ratios(seen),
        "streaming": streamed,
    }


def _ways(stack: ExitStack, home: Path, layout: Layout, streamed: dict[str, float]) -> dict[str, Way]:
    host = stack.enter_context(engine_at_hand())
    scratch = Path(tempfile.mkdtemp(prefix="pyb-"))
    stack.callback(shutil.rmtree, scratch)
    docker = DockerBackend(host, Counting("bench-docker"), owner="bench")
    stack.callback(docker.close)
    ways: dict[str, Way] = {"docker, ours": ours(docker, layout)}
    ways["docker armed, ours"] = ArmedWay(docker, layout.manifest_digest)
    stack.callback(remove_all, home)
    for runtime in installed():
        oci = OciBackend(home, Counting(f"bench-{runtime}"), owner="bench", runtime=runtime)
        stack.callback(oci.close)
        ways[f"oci {runtime}, ours"] = ours(oci, layout)
        if runtime == "crun":
            ways["oci crun armed, ours"] = ArmedWay(oci, layout.manifest_digest)
            streamed.update(streaming.measure(oci, layout.manifest_digest, scratch))
            stack.callback(read_cgroups(RAW_CGROUP).remove_parent)
            ways["crun run, raw"] = raw_runtime(oci, layout, scratch, runtime)
    options = hardening.run_args(scratch, host)
    warm = stack.enter_context(warm_container(host, options, layout.reference))
    ways["docker run"] = docker_command(host, "run", "--rm", *options, layout.reference, "true")
    ways["docker exec"] = docker_command(host, "exec", warm, "true")
    return ways


def _figures(runs: list[tuple[list[float], float]]) -> dict[str, Any]:
    every = [one for took, _ in runs for one in took]
    return {
        "ms_p50": percentile(every, 50),
        "ms_p95": percentile(every, 95),
        "a_second": round(len(every) / sum(seconds for _, seconds in runs), 1),
        "runs": len(every),
    }


def _ratios(seen: dict[str, dict[int, list[tuple[list[float], float]]]]) -> dict[str, float]:
    """Ours beside what one would use instead, each the median over the rounds: neighbours in time are compared."""

    def middle(name: str, other: str, at_once: int, figure: Callable[[tuple[list[float], float]], float]) -> float:
        pairs = zip(seen[name][at_once], seen[other][at_once], strict=True)
        return round(statistics.median(figure(mine) / figure(its) for mine, its in pairs), 2)

    def p50(run: tuple[list[float], float]) -> float:
        return statistics.median(run[0])

    def rate(run: tuple[list[float], float]) -> float:
        return len(run[0]) / run[1]

    ratios = {}
    for name in (name for name in seen if name.endswith("ours")):
        ratios[f"{name}: p50 / docker exec"] = middle(name, "docker exec", 1, p50)
        ratios[f"{name}: p50 / docker run"] = middle(name, "docker run", 1, p50)
        for at_once in () if "armed" in name else AT_ONCE:
            ratios[f"{name}: a second / docker run, {at_once} at once"] = middle(name, "docker run", at_once, rate)
    return ratios


def table(seen: dict[str, Any]) -> str:
    """The figures in Markdown."""
    told = seen["machine"]
    lines = [
        "# What a sandbox costs",
        "",
        f"Measured {seen['measured_at']} on {told['cores']} cores, {told['memory_gib']} GiB, kernel {told['kernel']}, "
        f"cgroup {told['cgroup']}, {told['distribution']}, {told['idle_share_before']:.0%} idle before.",
        "",
        f"The time around a `true`, {seen['rounds']} rounds of {seen['count']}; ours with all bounds, files, report, "
        "removal and the proof of death, the others held by the same bounds. Of those that were armed, the command is "
        "all that is counted, to the proof that its processes are dead; not what was started ahead.",
        "",
        "| | " + " | ".join(f"{at} at once: ms p50, p95, a second" for at in AT_ONCE) + " |",
        "|---|" + "---|" * len(AT_ONCE),
    ]
    for name, per in seen["ways"].items():
        cells = [f"{one['ms_p50']:.1f}, {one['ms_p95']:.1f}, {one['a_second']:.1f}" for one in per.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| ratio | |", "|---|---|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in seen["ratios"].items()]
    lines += [
        "",
        "Files: 2,000 of 10 KB from git objects, beside `tar | tar` from a disk to memory.",
        "",
        "| | ms |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value} |" for name, value in seen["streaming"].items()]
    return "\n".join([*lines, ""])


def main(
    count: Annotated[int, typer.Option(min=1, help="Runs of each way in a round.")] = 24,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    pause_seconds: Annotated[float, typer.Option(help="Rest before each way, for the kernel to clean up.")] = 0.5,
    home: Annotated[Path | None, typer.Option(help="A PATCHYARD_HOME to use and keep; else a new one.")] = None,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = RESULTS,
) -> None:
    """Measure what a sandbox costs, beside what one would use instead."""
    folder = Path(tempfile.mkdtemp(prefix="patchyard-bench-"))
    try:
        seen = measure(home or folder / "home", count=count, rounds=rounds, pause_seconds=pause_seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "sandbox.json").write_text(json.dumps(seen, indent=1) + "\n")
    text = table(seen)
    (out / "sandbox.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
