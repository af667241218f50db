"""cgroup version 2: what is dead is told from what is alive on a real hierarchy, and verdicts from the kernel's counts.

Where version 1 has the controllers, as on many hosts that have both, the hierarchy of version 2 has processes in it but
no counts: those are then taken from what a kernel with its controllers in version 2 wrote."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from policy.ceilings import Limits
from runners.sandbox.frames import Report
from runners.sandbox.oci.cgroups import Cgroups
from runners.sandbox.outcome import Outcome, result_of
from runners.sandbox.output import BoundedOutput
from runners.sandbox.spec import EngineFacts, SandboxResult, Timings
from tests.sandbox.inside import spec_of

FLEES = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60 & sleep 60' & sleep 60"
RECORDED = {
    "memory.events": "low 0\nhigh 0\nmax 1283\noom 2\noom_kill 1\noom_group_kill 0\n",
    "memory.peak": "134217728\n",
    "pids.events": "max 17\n",
    "memory.max": "134217728\n",
    "pids.max": "256\n",
}
"""Of a sandbox of 128 MiB on Linux 6.1 whose command allocated without end."""
FACTS = EngineFacts(
    backend="oci", host="/", version="1", runtime="crun", runtime_version="1", kernel="6.1", architecture="x86_64",
    cgroup_version=2, storage="folder",
)  # fmt: skip


def _mounted() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return Path(line.split()[4])
    return None


@pytest.fixture
def real() -> Iterator[Cgroups]:
    root = _mounted()
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no cgroup of version 2 can be made here")
    cgroups = Cgroups(2, (root,), f"patchyard-test-{secrets.token_hex(4)}")
    (root / cgroups.parent).mkdir()
    yield cgroups
    for name in cgroups.names():
        assert cgroups.remove(name, 10)
    cgroups.remove_parent()
    assert not (root / cgroups.parent).exists()


def _started(cgroups: Cgroups, name: str, below: str = "") -> subprocess.Popen[bytes]:
    folder = cgroups.hierarchies[0] / cgroups.parent / name / below
    folder.mkdir(parents=True)

    def enter() -> None:
        (folder / "cgroup.procs").write_text("0")

    return subprocess.Popen(["sh", "-c", FLEES], preexec_fn=enter, start_new_session=True)


def _lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):  # its parent may take note of its end at any moment
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("below", ["", "inner/most"])
def test_whoever_flees_stays_in_the_cgroup_and_dies_with_it(real: Cgroups, below: str) -> None:
    process = _started(real, "one", below)
    until = time.monotonic() + 20
    while len(real.processes("one")) < 4:
        assert time.monotonic() < until
        time.sleep(0.02)
    alive = real.processes("one")
    assert process.pid in alive
    assert real.names() == {"one"}
    assert real.remove("one", 10)
    # The shell may see its child killed, and end by itself, before it is its turn.
    assert process.wait(10) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert real.folders("one") == []
    assert [pid for pid in alive if _lives(pid)] == []


def test_one_that_is_empty_is_gone_at_once_and_others_are_left_alone(real: Cgroups) -> None:
    process = _started(real, "other")
    try:
        (real.hierarchies[0] / real.parent / "empty").mkdir()
        assert real.remove("empty", 0)
        assert real.kill("empty") == 0
        assert process.poll() is None
    finally:
        assert real.remove("other", 10)
        process.wait(10)


@pytest.fixture
def recorded(tmp_path: Path) -> Cgroups:
    folder = tmp_path / "patchyard" / "one"
    folder.mkdir(parents=True)
    for name, text in RECORDED.items():
        (folder / name).write_text(text)
    return Cgroups(2, (tmp_path,), "patchyard")


def verdict(cgroups: Cgroups, *, status: int | None, inside: dict[str, str] | None = None) -> SandboxResult:
    """Of a command that ended with this wait status; without, the first process could not report."""
    spec = spec_of("sha256:" + "a" * 64, "true", limits=Limits())
    report = Report(spec)
    if status is not None:
        facts = {"unpacked": "1", "status": str(status), **(inside or {})}
        lines = "".join(f"{name}={value}\n" for name, value in facts.items()).encode()
        report.feed(b"R 0\nE %d\n%s" % (len(lines), lines))
    outcome = Outcome(report, BoundedOutput(100), None, seen=cgroups.facts("one"))
    return result_of(spec, "one", outcome, Timings(), FACTS)


def test_the_kernels_counts_decide(recorded: Cgroups) -> None:
    killed = verdict(recorded, status=9)
    assert (killed.ended, killed.signal, killed.oom_kills) == ("oom_killed", 9, 1)
    assert (killed.peak_memory_bytes, killed.refused_forks) == (134217728, 17)
    assert recorded.bounds("one") == ("134217728", "256")
    assert verdict(recorded, status=None).ended == "oom_killed"
    outlived = verdict(recorded, status=0)
    assert (outlived.ended, outlived.exit_code, outlived.oom_killed, outlived.oom_kills) == ("exited", 0, False, 1)


def test_137_alone_decides_nothing(recorded: Cgroups) -> None:
    events = recorded.hierarchies[0] / "patchyard" / "one" / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 9000\noom 4\noom_kill 0\noom_group_kill 0\n")
    assert verdict(recorded, status=9).ended == "signalled"
    assert verdict(recorded, status=137 << 8).ended == "exited"


def test_what_was_counted_outside_counts_more_than_what_is_said_inside(recorded: Cgroups) -> None:
    lie = {"cgroup:memory.events": "low 0 high 0 max 0 oom 0 oom_kill 0"}
    assert verdict(recorded, status=9, inside=lie).ended == "oom_killed"
