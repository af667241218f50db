"""What it costs to bring a workspace into a sandbox: 2,000 files of 10 KB, from git objects to the command's start.

Each figure is a median over turns taken one after the other; what a sandbox costs without files is subtracted.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from runners.sandbox.backend import Armed, Backend
from runners.sandbox.orders import Changes
from runners.sandbox.spec import SandboxPlace, SandboxSpec
from runners.workspace.changes import changes_between
from runners.workspace.store import EMPTY_TREE, FILE, Change, Store
from runners.workspace.stream import TarCache, tar_chunks

TURNS = 9
FILES, FILE_BYTES, FOLDERS = 2_000, 10_000, 50


def measure(backend: Backend, image: str, scratch: Path) -> dict[str, float]:
    """Milliseconds by what was done."""
    folder = scratch / "files"
    files = _files()
    for name, change in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(change.data)
    store = Store.create(scratch / "store.git")
    tree = store.with_changes(EMPTY_TREE, files)
    changed = store.with_changes(tree, {"folder-7/file-7": Change(FILE, b"changed\n")})
    warm = TarCache()

    def run(of: str, cache: TarCache) -> None:
        assert backend.run(_spec(image), tar_chunks(store, of, cache)).exit_code == 0

    def unpack() -> None:
        target = Path("/dev/shm", f"patchyard-{time.monotonic_ns()}")
        target.mkdir()
        subprocess.run(f"tar -cf - -C {folder} . | tar -xf - -C {target}", shell=True, check=True)  # noqa: S602
        subprocess.Popen(["rm", "-rf", target])

    ways: dict[str, Callable[[], None]] = {
        "plain tar": unpack,
        "nothing": lambda: run(EMPTY_TREE, warm),
        "first": lambda: run(tree, TarCache()),
        "again": lambda: run(tree, warm),
    }
    took: dict[str, list[float]] = {name: [] for name in (*ways, "armed", "armed, changed")}
    for way in ways.values():
        way()
    for _ in range(TURNS):
        for name, way in ways.items():
            took[name].append(_timed(way))
        for name, to in (("armed", tree), ("armed, changed", changed)):
            one = _armed(backend, image, tar_chunks(store, tree, warm))
            took[name].append(_timed(partial(_fire, one, image, store, tree, to)))
    middle = {name: statistics.median(times) for name, times in took.items()}
    return {
        "plain tar": round(middle["plain tar"], 1),
        "a tree that this worker streams for the first time": round(middle["first"] - middle["nothing"], 1),
        "a tree that this worker has streamed before": round(middle["again"] - middle["nothing"], 1),
        "armed with that tree, one file changed": round(middle["armed, changed"], 1),
        "of that, for the change": round(middle["armed, changed"] - middle["armed"], 1),
    }


def _files() -> dict[str, Change]:
    return {
        f"folder-{number % FOLDERS}/file-{number}": Change(FILE, f"{number} ".encode() * (FILE_BYTES // 5))
        for number in range(FILES)
    }


def _spec(image: str) -> SandboxSpec:
    return SandboxSpec(image=image, command=("true",), deadline_seconds=60, job_id=1, step_id=1, fence=1)


def _armed(backend: Backend, image: str, files: Iterable[bytes]) -> Armed:
    one = backend.arm(SandboxPlace(image=image, job_id=1, step_id=1, fence=1, armed_seconds=60))
    one.arm(files, None)
    return one


def _fire(one: Armed, image: str, store: Store, tree: str, to: str) -> None:
    assert one.fire(_spec(image), Changes(*changes_between(store, tree, to)), None).exit_code == 0


def _timed(way: Callable[[], None]) -> float:
    began = time.monotonic()
    way()
    return 1000 * (time.monotonic() - began)
