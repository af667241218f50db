"""Hostile programs against one sandbox: what tries to get out, to stay alive, or to fill the machine, does not.

The programs stand in `tests/sandbox/hostile`, and each says what a fooled system would show.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from policy.ceilings import KIB, MIB, Limits
from runners.sandbox.backend import Backend
from runners.sandbox.spec import SandboxResult, SandboxSpec
from tests.sandbox.inside import spec_of, tar_of

pytestmark = pytest.mark.engine

HOSTILE = Path(__file__).parent / "hostile"
EACH_ALONE = """
import json, subprocess, sys
said = {}
for name in sys.argv[1:]:
    done = subprocess.run(
        [sys.executable, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    said[name] = done.stdout.strip()[-2000:] or f'nothing, and ended with {done.returncode}'
print(json.dumps(said))
"""


def programs(folder: str) -> dict[str, bytes]:
    """The programs of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted((HOSTILE / folder).iterdir()) if path.is_file()}


# -- out ------------------------------------------------------------------------------------------------------------


def test_nothing_gets_out(backend: Backend, sandbox_image: str) -> None:
    files = programs("escape")
    names = [name for name in files if name != "attempts.py"]
    assert len(names) >= 20
    command = ("python3", "-c", EACH_ALONE, *names)
    result = backend.run(spec_of(sandbox_image, *command, deadline_seconds=90), tar_of(files))
    assert result.ended == "exited", result.output
    said = json.loads(result.output.splitlines()[-1])
    assert set(said) == set(names)
    assert {name: words for name, words in said.items() if not words.startswith("HELD ")} == {}


# -- alive ----------------------------------------------------------------------------------------------------------

START_ALL = 'for one in *.sh; do sh "$one" "$0"; done; for one in *.py; do python3 "$one" "$0" & done; sleep 2; exit 7'


def marked(mark: str) -> list[int]:
    """The processes of this machine whose command line has the mark, by its kernel's word."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if mark.encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def test_nothing_outlives_its_command(backend: Backend, sandbox_image: str) -> None:
    files, mark = programs("stay"), f"stays-{os.getpid()}-{time.monotonic_ns()}"
    assert len(files) >= 10
    seen: list[int] = []
    result = _watched(backend, mark, seen, spec_of(sandbox_image, "sh", "-c", START_ALL, mark), files)
    assert len(seen) >= len(files) // 2, "they did run, where this machine's kernel could see them"
    assert result.exit_code == 7, (result.ended, result.output)
    assert marked(mark) == []


@pytest.mark.parametrize("name", ["deaf.py", "dodge.py", "cron.py"])
def test_nothing_outlives_its_deadline(backend: Backend, sandbox_image: str, name: str) -> None:
    files, mark = programs("stay"), f"stays-{os.getpid()}-{time.monotonic_ns()}"
    script = f"python3 {name} $0; trap '' TERM HUP INT; while :; do sleep 0.2; done"
    spec = spec_of(sandbox_image, "sh", "-c", script, mark, deadline_seconds=1.0)
    result = backend.run(spec, tar_of(files))
    assert (result.ended, result.exit_code) == ("timed_out", None)
    assert marked(mark) == []


def _watched(backend: Backend, mark: str, seen: list[int], spec: SandboxSpec, files: dict[str, bytes]) -> SandboxResult:
    """The result of a run, during which the processes with the mark are counted."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            now = marked(mark)
            if len(now) > len(seen):
                seen[:] = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return backend.run(spec, tar_of(files))
    finally:
        over.set()
        watcher.join()


# -- full -----------------------------------------------------------------------------------------------------------

TIGHT = Limits(
    memory_bytes=128 * MIB, pids=64, open_files=256, file_size_bytes=256 * MIB, workspace_bytes=16 * MIB,
    tmp_bytes=16 * MIB, output_bytes=4 * KIB, output_cap_bytes=4 * MIB,
)  # fmt: skip


def filled(backend: Backend, image: str, name: str, **fields: Any) -> SandboxResult:
    """What a program of `fill` came to, within tight limits."""
    program = "python3" if name.endswith(".py") else "sh"
    spec = spec_of(image, program, name, **({"limits": TIGHT, "deadline_seconds": 30.0} | fields))
    return backend.run(spec, tar_of({name: programs("fill")[name]}))


@pytest.mark.parametrize("name", ["workspace.py", "many_files.sh"])
def test_a_full_disk_is_the_sandbox_s_own(backend: Backend, sandbox_image: str, name: str) -> None:
    result = filled(backend, sandbox_image, name)
    assert result.ended == "disk_full", (result.ended, result.output)


def test_what_nobody_sees_is_counted_too(backend: Backend, sandbox_image: str) -> None:
    result = filled(backend, sandbox_image, "tmp.sh")
    assert (result.ended, result.exit_code) == ("exited", 1)
    assert b"No space left on device" in result.output


def test_full_memory_is_the_sandbox_s_own(backend: Backend, sandbox_image: str) -> None:
    assert filled(backend, sandbox_image, "memory.py").ended == "oom_killed"
    shared = filled(backend, sandbox_image, "shm.py")
    assert b"No space left on device" in shared.output or shared.oom_killed, shared.output
    assert shared.peak_memory_bytes is None or shared.peak_memory_bytes <= TIGHT.memory_bytes


def test_what_can_be_counted_is_counted(backend: Backend, sandbox_image: str) -> None:
    files = filled(backend, sandbox_image, "open_files.py").output.split()
    assert int(files[0]) < TIGHT.open_files
    processes = filled(backend, sandbox_image, "processes.py").output.split()
    assert int(processes[0]) < TIGHT.pids
    pipes = filled(backend, sandbox_image, "pipes.py")
    assert pipes.oom_killed or int(pipes.output.split()[0]) << 20 < TIGHT.memory_bytes


def test_a_flood_of_output_is_cut_off_and_is_no_result(backend: Backend, sandbox_image: str) -> None:
    flood = filled(backend, sandbox_image, "output.sh")
    assert flood.ended == "output_flooded"
    assert len(flood.output) < 2 * TIGHT.output_bytes
    forged = filled(backend, sandbox_image, "result_stream.py", reports=("/tmp/report.xml",))
    assert (forged.exit_code, forged.reports[0].state) == (3, "missing")


def test_what_is_larger_than_it_may_be_stays_inside(backend: Backend, sandbox_image: str) -> None:
    sparse = filled(backend, sandbox_image, "sparse.py", export_workspace=True, workspace_export_bytes=32 * MIB)
    assert (sparse.exit_code, sparse.workspace_state, sparse.workspace_tar) == (0, "too_big", None)
    report = filled(backend, sandbox_image, "report.py", reports=("/tmp/report.xml",))
    assert (report.exit_code, report.reports[0].state, report.reports[0].data) == (0, "too_big", b"")


def test_folders_without_an_end_come_to_one(backend: Backend, sandbox_image: str) -> None:
    deep = filled(backend, sandbox_image, "deep.py", export_workspace=True, workspace_export_bytes=32 * MIB)
    assert deep.ended in ("exited", "disk_full")
    assert deep.workspace_state in ("ok", "failed", "too_big")
