"""What only sandboxes without an engine promise: they die with their worker, and their images are files that nobody
changes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from images.oci_layout import Layout
from ledger.errors import BadInput, Unfit
from policy.ceilings import MIB, Limits
from runners.sandbox.backend import FoundSandbox, SandboxBroken, SandboxLost
from runners.sandbox.oci import OciBackend, launcher_process
from runners.sandbox.oci.cgroups import read_cgroups
from runners.sandbox.oci.places import Labels, Places
from runners.sandbox.oci.removal import remove_all
from runners.sandbox.reap import prove_death
from tests.fixtures.engine import MemoryRegistry, lend_images
from tests.sandbox.inside import STEP, sh, spec_of, tar_of
from tests.sandbox.test_death import Workers, workers

__all__ = ["workers"]
pytestmark = pytest.mark.engine
on_oci = pytest.mark.parametrize("kind", ["oci-crun", "oci-runc"], indirect=True, scope="session")


@on_oci
def test_a_killed_workers_sandbox_dies_with_it(workers: Workers) -> None:
    worker = workers.at_work()
    worker.kill()
    began = time.monotonic()
    (found,) = workers.left("exited")
    assert time.monotonic() - began < 5
    worker.wait()
    (proof,) = prove_death(workers.backend, STEP)
    assert (proof.sandbox, proof.killed, proof.gone) == (found.name, False, True)
    assert proof.seen == {"cgroup": "removed", "folders": "removed", "mounts": 0}


@on_oci
def test_a_sandbox_whose_launcher_is_killed_is_lost_and_gone(
    make_backend: Callable[..., OciBackend], sandbox_image: str
) -> None:
    registry = MemoryRegistry(f"launcher-{os.getpid()}")
    backend = make_backend(registry=registry)
    threading.Timer(1.0, lambda: os.kill(_launcher(backend), signal.SIGKILL)).start()
    with pytest.raises(SandboxLost, match="the process that starts sandboxes was ended"):
        sh(backend, sandbox_image, "sleep 60", deadline_seconds=60)
    assert [state for _, state in registry.marks] == ["registered", "created", "running", "removed"]
    assert backend.find() == []
    assert sh(backend, sandbox_image, "echo again").output == b"again\n"


def _launcher(backend: OciBackend) -> int:
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "launcher_process"], capture_output=True).stdout
    (pid,) = children.split()
    return int(pid)


@on_oci
def test_a_sandbox_destroyed_while_it_starts_never_runs(
    make_backend: Callable[..., OciBackend], sandbox_image: str
) -> None:
    """Between its creation and its start there is nothing to kill yet, and there must be nothing to start either."""

    class Destroying(MemoryRegistry):
        def mark(self, name: str, state: str, evidence: dict[str, Any]) -> None:
            super().mark(name, state, evidence)
            if state == "created":
                (found,) = make_backend(owner=owner).find()
                proofs.append(make_backend(owner=owner).destroy(found))

    owner, proofs = f"destroyed-{os.getpid()}-{time.monotonic_ns()}", []
    registry = Destroying(owner)
    backend = make_backend(owner=owner, registry=registry)
    with pytest.raises(SandboxLost, match="removed from outside while it was started"):
        sh(backend, sandbox_image, "true")
    assert [proof.gone for proof in proofs] == [True]
    assert [state for _, state in registry.marks] == ["registered", "created", "removed"]


@on_oci
def test_files_that_fail_while_a_sandbox_starts_leave_nothing_of_it(
    make_backend: Callable[..., OciBackend], sandbox_image: str, where: str
) -> None:
    """A runtime that is at work just then would go on to make what was just removed."""

    def files(after_seconds: float) -> Iterator[bytes]:
        time.sleep(after_seconds)
        raise ObjectGone
        yield b""

    class ObjectGone(Exception):
        """A file's content was not to be had."""

    owner = f"failing-{os.getpid()}-{time.monotonic_ns()}"
    backend = make_backend(owner=owner, registry=MemoryRegistry(owner))
    places = Places.of(Path(where))
    for milliseconds in range(20):
        with pytest.raises(ObjectGone):
            backend.run(spec_of(sandbox_image, "sleep", "60"), files(milliseconds / 1000))
    time.sleep(0.5)
    assert backend.find() == []
    assert not [name for name in read_cgroups(places.cgroup).names() if name.startswith(owner)]
    assert not list(places.states.glob(f"*/{owner}*"))


@on_oci
def test_what_memory_killed_is_counted_from_outside(
    make_backend: Callable[..., OciBackend], sandbox_image: str
) -> None:
    """The first process, killed while it reads a report that is too large, can't tell of it any more."""
    limits = Limits(memory_bytes=64 * MIB, workspace_bytes=4 * MIB, tmp_bytes=128 * MIB)
    spec = spec_of(
        sandbox_image, "truncate", "-s", "100M", "/tmp/report", limits=limits,
        reports=("/tmp/report",), report_bytes=200 * MIB,
    )  # fmt: skip
    result = make_backend().run(spec, tar_of())
    assert (result.exit_code, result.reports[0].state, result.oom_kills) == (0, "missing", 1)
    assert result.peak_memory_bytes is not None
    assert result.peak_memory_bytes > 60 * MIB


@on_oci
def test_nothing_is_left_after_many(make_backend: Callable[..., OciBackend], sandbox_image: str) -> None:
    backend = make_backend()
    sh(backend, sandbox_image, "true")
    before = len(os.listdir("/proc/self/fd"))
    mounts = Path("/proc/self/mountinfo").read_text()
    for _ in range(20):
        assert sh(backend, sandbox_image, "true").exit_code == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/mountinfo").read_text().count("/oci/") == mounts.count("/oci/")
    backend.close()
    assert subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "launcher_process"]).returncode == 1


@on_oci
def test_a_whole_home_is_cleared(kind: str, where: str, sandbox_image: str, workers: Workers) -> None:
    workers.killed_at_work()
    assert [one.state for one in workers.backend.find()] == ["running"]
    places = Places.of(Path(where))
    names = {labels.name for labels in places.all()}
    assert remove_all(Path(where)) == []
    assert list(places.all()) == []
    assert not names & read_cgroups(places.cgroup).names()


@on_oci
def test_a_sandbox_without_an_image_shows_that_this_machine_can(kind: str, tmp_path: Path) -> None:
    backend = OciBackend(tmp_path / "home", MemoryRegistry("self-test"), runtime=kind.partition("-")[2])
    seen = backend.self_test()
    assert (seen.runtime, seen.pids_limit) == (kind.partition("-")[2], 256)
    assert list(Places.of(tmp_path / "home").all()) == []
    backend.close()
    assert remove_all(tmp_path / "home") == []
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp_path) in line]


def test_a_runtime_that_is_none_is_unfit(tmp_path: Path) -> None:
    program = tmp_path / "runtime"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo runtime version 1 && exit\necho no, thanks >&2; exit 3\n'
    )
    program.chmod(0o755)
    backend = OciBackend(tmp_path / "home", MemoryRegistry("none"), runtime=str(program))
    with pytest.raises(Unfit, match="no, thanks"):
        backend.self_test()
    backend.close()
    with pytest.raises(BadInput, match=r"PATCHYARD_SANDBOX_RUNTIME: no such program \(none-such\)"):
        OciBackend(tmp_path / "home", MemoryRegistry("none"), runtime="none-such")


def test_a_home_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "oci").mkdir(mode=0o755)
    with pytest.raises(BadInput, match="others may enter this folder"):
        OciBackend(tmp_path, MemoryRegistry("none"))


def test_names_and_labels_cannot_be_mistaken() -> None:
    labels = Labels("yard", 1, 2, 3, "patchyard-2-3-abc")
    assert Labels.read(labels.key) == labels
    for key in ("a+1+2+3", "a+1+2+x+n", "a+1+2+3+..", "a+1+2+3+/etc", ".unpacking-x", "a+1+2+3+n+m"):
        assert Labels.read(key) is None
    with pytest.raises(SandboxBroken):
        Labels.of(spec_of("sha256:" + "0" * 64, "true"), "yard", "../x")
    with pytest.raises(BadInput):
        OciBackend(Path("/nowhere"), MemoryRegistry("none"), owner="a/b")


def test_only_what_was_found_can_be_destroyed(tmp_path: Path) -> None:
    backend = OciBackend(tmp_path / "home", MemoryRegistry("none"), owner="mine")
    stranger = FoundSandbox(key="../../etc", name="x", job_id=1, step_id=1, fence=1, state="running")
    theirs = stranger.model_copy(update={"key": "theirs+1+2+3+name"})
    for found in (stranger, theirs):
        with pytest.raises(SandboxBroken):
            backend.destroy(found)
    backend.close()


@on_oci
def test_the_last_one_out_takes_the_cgroup_of_all_sandboxes_away(
    kind: str, tmp_path: Path, sandbox_layout: Layout
) -> None:
    home = tmp_path / "home"
    lend_images(home, sandbox_layout)
    first, second = (
        OciBackend(home, MemoryRegistry(f"{name}-{os.getpid()}"), runtime=kind.partition("-")[2]) for name in "ab"
    )
    around = read_cgroups(Places.of(home).cgroup)
    for backend in (first, second):
        assert backend.run(spec_of(sandbox_layout.manifest_digest, "true"), tar_of()).exit_code == 0
    parents = [root / around.parent for root in around.hierarchies]
    first.close()
    assert any(parent.is_dir() for parent in parents)
    second.close()
    assert not any(parent.is_dir() for parent in parents)


def test_a_number_that_comes_again_is_not_taken_for_the_end_of_who_had_it_before() -> None:
    """The process that starts runtimes remembers how processes ended that it does not know yet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first = subprocess.Popen(["sleep", "60"])
    with ours, theirs, channel, other, tempfile.NamedTemporaryFile("w") as pid_file:
        launcher = launcher_process.Launcher(theirs, {})
        pid_file.write(str(first.pid))
        pid_file.flush()
        launcher._strays[first.pid] = 0
        launcher._has_started(launcher_process.Sandbox(other, pid_file.name, runtime=1), 0)
        assert json.loads(channel.recv(1000)) == {"started": first.pid}
        assert list(launcher._by_pid) == [first.pid]
        first.kill()
        first.wait()
        launcher._strays[first.pid] = 9
        launcher._selector.register(other, selectors.EVENT_READ)
        launcher._has_started(launcher_process.Sandbox(other, pid_file.name, runtime=1), 0)
        assert [json.loads(channel.recv(1000)) for _ in range(2)] == [{"started": first.pid}, {"ended": 9}]
