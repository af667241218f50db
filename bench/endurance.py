"""A thousand sandboxes in a row, and what is left of them: nothing, and nobody has grown.

    python -m bench.endurance

Counted before and after: containers, volumes, mounts, cgroups and processes of the engine and of this process; memory
and open files of this process (which is what a worker is), of the process that starts OCI runtimes, and of the engine
and its containerd. The first runs are not counted, since programs fill caches. Results go to `endurance.json` and
`endurance.md` in `bench/results`; exit status 1 when something is left or has grown.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import docker
import psutil
import typer

from bench import machine
from bench.sandbox import IMAGE, NO_FILES, RESULTS, Counting, engine_at_hand, say
from images.oci_layout import Layout, read_layout
from patchyard.image_shelf import build_missing, layout_of, locked_images
from patchyard.local.engine import private_engine
from patchyard.settings import load_settings
from runners.sandbox.backend import Backend
from runners.sandbox.docker import DockerBackend
from runners.sandbox.oci import OciBackend
from runners.sandbox.oci.places import Places
from runners.sandbox.oci.runtime import installed
from runners.sandbox.orders import Changes
from runners.sandbox.spec import SandboxPlace, SandboxSpec

WARM_UP = 100
GROWTH = 0.05
"""By how much of itself a process may have more memory after than before, which the allocators' noise is."""
GROWTH_BYTES = 8 << 20
IDLE_CONNECTIONS = 4
"""How many more an engine may have open: clients that are idle when it is looked at."""
WATCHED = ("dockerd", "containerd")


@dataclass(frozen=True)
class Ground:
    """Where sandboxes leave what they leave: an engine, and the home of those without one."""

    host: str
    root: str
    cgroups: tuple[str, ...]
    home: Path

    @classmethod
    def of(cls, host: str, home: Path) -> Ground:
        client = docker.APIClient(base_url=host)
        root = str(client.info()["DockerRootDir"])
        client.close()
        own = private_engine(Path(root).parent)
        engine_cgroup = own.cgroup if own.host == host else "docker"
        return cls(host, root, (engine_cgroup, Places.of(home).cgroup), home)

    def counted(self) -> dict[str, int]:
        """What there is of that which sandboxes are made of."""
        client = docker.APIClient(base_url=self.host)
        try:
            containers, volumes = client.containers(all=True), client.volumes()["Volumes"] or []
        finally:
            client.close()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        inside = [folder for name in self.cgroups for folder in Path("/sys/fs/cgroup").glob(f"*/{name}/**/")]
        return {
            "containers": len(containers),
            "volumes": len(volumes),
            "mounts": sum(1 for line in mounts if self.root in line or str(self.home) in line),
            "cgroups": len(inside),
            "processes": len({one.pid for one in [*psutil.Process().children(recursive=True), *self._shims()]}),
        }

    def _shims(self) -> list[psutil.Process]:
        mine = str(Path(self.root).parent)
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if any(mine in word for word in one.cmdline()):
                    found.append(one)
        return found


def grown(names: dict[str, psutil.Process]) -> dict[str, dict[str, int]]:
    """Memory that is a process's own, and its open files."""
    gc.collect()
    return {name: {"memory_bytes": _own_bytes(one.pid), "open_files": one.num_fds()} for name, one in names.items()}


def _own_bytes(pid: int) -> int:
    """What a process has written; the pages of its program come and go as the kernel likes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def cold(backend: Backend, image: str) -> Callable[[], None]:
    spec = SandboxSpec(image=image, command=("true",), deadline_seconds=60, job_id=1, step_id=1, fence=1)

    def once() -> None:
        assert backend.run(spec, NO_FILES).exit_code == 0

    return once


def armed(backend: Backend, image: str) -> Callable[[], None]:
    place = SandboxPlace(image=image, job_id=1, step_id=1, fence=1, armed_seconds=60)
    spec = SandboxSpec(image=image, command=("true",), deadline_seconds=60, job_id=1, step_id=1, fence=1)

    def once() -> None:
        one = backend.arm(place)
        one.arm(NO_FILES, None)
        assert one.fire(spec, Changes(), None).exit_code == 0

    return once


def settled(ground: Ground, before: dict[str, int]) -> dict[str, int]:
    """The counts, once what is on its way out is gone: the kernel and the engine take a moment."""
    until = time.monotonic() + 30
    while (now := ground.counted()) != before and time.monotonic() < until:
        time.sleep(0.5)
    return now


def run(name: str, way: Callable[[], None], ground: Ground, runs: int, backend: Backend) -> dict[str, Any]:
    for _ in range(WARM_UP):
        way()
    time.sleep(1)
    watched = {"worker": psutil.Process()}
    watched |= {one.name(): one for one in psutil.Process().children(recursive=True) if one.name() in WATCHED}
    if isinstance(backend, OciBackend) and backend.launcher_pid is not None:
        watched["launcher"] = psutil.Process(backend.launcher_pid)
    before, size_before = ground.counted(), grown(watched)
    began = time.monotonic()
    for _ in range(runs):
        way()
    took = time.monotonic() - began
    after, size_after = settled(ground, before), grown(watched)
    left = {what: after[what] - before[what] for what in before}
    growth = {who: {what: size_after[who][what] - size for what, size in sizes.items()}
              for who, sizes in size_before.items()}  # fmt: skip
    wrong = [what for what, amount in left.items() if amount > 0]
    for who, sizes in growth.items():
        allowed = max(GROWTH_BYTES, GROWTH * size_before[who]["memory_bytes"])
        idle = IDLE_CONNECTIONS if who in WATCHED else 0
        wrong += [f"open files of {who}"] if sizes["open_files"] > idle else []
        wrong += [f"memory of {who}"] if sizes["memory_bytes"] > allowed else []
    say(f"{name}: {runs} runs in {took:.1f} s, left {left}, grown {growth}, wrong: {', '.join(wrong) or 'nothing'}")
    return {"runs": runs, "seconds": round(took, 1), "left": left, "size_before": size_before, "growth": growth,
            "wrong": wrong}  # fmt: skip


def measure(home: Path, runs: int) -> dict[str, Any]:
    settings = load_settings(home=home)
    build_missing(settings, [IMAGE], say)
    folder = layout_of(settings, locked_images(settings)[IMAGE].digest)
    assert folder is not None
    layout = read_layout(folder)
    with ExitStack() as stack:
        host = stack.enter_context(engine_at_hand())
        ground = Ground.of(host, home)
        found: dict[str, Any] = {}
        for backend_name, backend in _backends(host, home).items():
            _load(backend, layout)
            for kind, make in (("cold", cold), ("armed", armed)):
                name = f"{backend_name}, {kind}"
                found[name] = run(name, make(backend, layout.manifest_digest), ground, runs, backend)
            backend.close()
        facts = machine.facts(host)
    return {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": facts, "ways": found}


def _backends(host: str, home: Path) -> dict[str, Backend]:
    made: dict[str, Backend] = {"docker": DockerBackend(host, Counting("endure-docker"), owner="endure")}
    for runtime in installed()[:1]:
        made[f"oci {runtime}"] = OciBackend(home, Counting("endure-oci"), owner="endure", runtime=runtime)
    return made


def _load(backend: Backend, layout: Layout) -> None:
    if not backend.has_image(layout.manifest_digest):
        backend.load_image(layout.folder)


def table(seen: dict[str, Any]) -> str:
    """The figures in Markdown."""
    lines = [
        "# What many sandboxes leave",
        "",
        f"Measured {seen['measured_at']} on {seen['machine']['cores']} cores, kernel {seen['machine']['kernel']}; "
        f"{WARM_UP} runs before are not counted.",
        "",
        "| | runs | seconds | containers, volumes, mounts, cgroups, processes left | grown: MiB and open files |",
        "|---|---|---|---|---|",
    ]
    for name, one in seen["ways"].items():
        sizes = "; ".join(
            f"{who.split()[0]} {size['memory_bytes'] / (1 << 20):+.1f}, {size['open_files']:+d}"
            for who, size in one["growth"].items()
        )
        lines.append(
            f"| {name} | {one['runs']} | {one['seconds']} | {', '.join(map(str, one['left'].values()))} | {sizes} |"
        )
    return "\n".join([*lines, ""])


def main(
    runs: Annotated[int, typer.Option(min=1, help="Sandboxes in a row, of each backend, cold and armed.")] = 1000,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = RESULTS,
) -> None:
    """Run many sandboxes and see what is left of them."""
    folder = Path(tempfile.mkdtemp(prefix="patchyard-bench-"))
    try:
        seen = measure(folder / "home", runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "endurance.json").write_text(json.dumps(seen, indent=1) + "\n")
    text = table(seen)
    (out / "endurance.md").write_text(text)
    print(text)
    sys.exit(any(one["wrong"] for one in seen["ways"].values()))


if __name__ == "__main__":
    typer.run(main)
