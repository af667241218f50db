"""Whoever dies, the worker, the sandbox or the engine: what is left is found, and its death is proved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runners.sandbox.backend import Backend, FoundSandbox, ImageUnavailable, SandboxLost
from runners.sandbox.reap import leftovers, prove_death, reap
from tests.sandbox.inside import STEP, sh
from tests.sandbox.kinds import OWN_KERNEL

pytestmark = pytest.mark.engine

WORKER = """
import sys
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import spec_of, tar_of
from tests.sandbox.kinds import connect
kind, where, owner, image, seconds, fence = sys.argv[1:]
backend = connect(kind, where, registry=MemoryRegistry(owner), owner=owner)
print('ready', flush=True)
backend.run(spec_of(image, 'sleep', '60', deadline_seconds=float(seconds), fence=int(fence)), tar_of())
"""


class Workers:
    """Workers in processes of their own, which can be killed, with a backend that sees what they left."""

    def __init__(self, kind: str, where: str, image: str, make_backend: Callable[..., Backend]) -> None:
        self.owner = f"death-{os.getpid()}-{time.monotonic_ns()}"
        self.backend = make_backend(owner=self.owner)
        self._arguments = (kind, where, self.owner, image)
        self.own_kernel = kind in OWN_KERNEL
        self._seen: dict[str, float] = {}

    def start(self, seconds: float = 60, fence: int = 1, **environment: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, *self._arguments, str(seconds), str(fence)]
        worker = subprocess.Popen(argv, env=os.environ | environment, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.stdout.close()
        return worker

    def crashed_at(self, point: str, **options: float) -> None:
        worker = self.start(**options, PATCHYARD_CRASH_POINTS="1", PATCHYARD_CRASH=point)  # type: ignore[arg-type]
        assert worker.wait(30) == -signal.SIGKILL

    def at_work(self, seconds: float = 60) -> subprocess.Popen[bytes]:
        """A worker whose command is running."""
        worker = self.start(seconds=seconds)
        while not any(self._runs(one) for one in self.backend.find()):
            assert worker.poll() is None
            time.sleep(0.02)
        return worker

    def killed_at_work(self, seconds: float = 60) -> None:
        """A worker that was killed when its command was running, with all that it had started: nobody was left who
        could have taken the sandbox along."""
        worker = self.at_work(seconds)
        worker.send_signal(signal.SIGSTOP)
        family = [*psutil.Process(worker.pid).children(), worker]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: none is to see the other die
            for process in family:
                process.send_signal(number)
        worker.wait()

    def _runs(self, sandbox: FoundSandbox) -> bool:
        if self.own_kernel:  # which alone knows its processes: it is given the time to begin
            self._seen.setdefault(sandbox.name, time.monotonic())
            return sandbox.state == "running" and time.monotonic() - self._seen[sandbox.name] > 3
        return self._command_runs(sandbox)

    def _command_runs(self, sandbox: FoundSandbox) -> bool:
        """Whether the command is there, by the kernel's word: a process of that name in the sandbox's cgroup."""
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and (process / "cmdline").read_bytes() == b"sleep\0" + b"60\0":
                    cgroup = (process / "cgroup").read_text()
                    if sandbox.key in cgroup or f"/{sandbox.name}\n" in cgroup:
                        return True
            except OSError:
                continue
        return False

    def left(self, state: str, timeout_seconds: float = 10) -> list[FoundSandbox]:
        """What is left, once it is in that state."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = self.backend.find()
            if found and all(one.state == state for one in found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


@pytest.fixture
def workers(kind: str, where: str, sandbox_image: str, make_backend: Callable[..., Backend]) -> Iterator[Workers]:
    made = Workers(kind, where, sandbox_image, make_backend)
    yield made
    reap(made.backend, set())


def test_a_worker_killed_before_creation_leaves_nothing(workers: Workers) -> None:
    workers.crashed_at("sandbox.after_register")
    assert workers.backend.find() == []


# A sandbox whose worker dies before the files are sent ends by itself: its input ends, and is no tar.
@pytest.mark.parametrize(
    ("point", "state"),
    [("sandbox.after_create", "created"), ("sandbox.after_start", "exited"), ("sandbox.after_exit", "exited")],
)
def test_what_a_killed_worker_leaves_is_found_and_proved_dead(workers: Workers, point: str, state: str) -> None:
    workers.crashed_at(point, seconds=1)
    (found,) = workers.left(state)
    assert (found.job_id, found.step_id, found.fence) == (70, STEP, 1)
    (proof,) = prove_death(workers.backend, STEP)
    assert (proof.found, proof.killed, proof.gone) == (state, False, True)
    assert workers.backend.find() == []
    assert prove_death(workers.backend, STEP) == []


@pytest.mark.every_runtime
def test_a_command_that_runs_on_is_killed_and_proved_dead(workers: Workers) -> None:
    workers.killed_at_work()
    (proof,) = prove_death(workers.backend, STEP)
    assert (proof.found, proof.killed, proof.gone) == ("running", True, True)
    assert proof.seen
    assert workers.backend.find() == []


def test_a_command_that_nobody_watches_any_more_ends_at_its_deadline(workers: Workers) -> None:
    workers.killed_at_work(seconds=3)
    workers.left("running")
    workers.left("exited")
    assert [proof.gone for proof in reap(workers.backend, set())] == [True]


def test_a_live_lease_keeps_its_sandbox_and_an_older_fence_loses_its_own(workers: Workers) -> None:
    workers.crashed_at("sandbox.after_start", fence=1)
    workers.crashed_at("sandbox.after_start", fence=2)
    assert [one.fence for one in leftovers(workers.backend, {(STEP, 2)})] == [1]
    assert leftovers(workers.backend, {(STEP, 1), (STEP, 2)}) == []
    assert len(prove_death(workers.backend, STEP, below_fence=2)) == 1
    assert [one.fence for one in workers.backend.find(step_id=STEP)] == [2]
    assert workers.backend.find(step_id=STEP + 1) == []


def test_another_ledgers_sandboxes_are_not_touched(workers: Workers, make_backend: Callable[..., Backend]) -> None:
    workers.crashed_at("sandbox.after_start")
    assert reap(make_backend(owner="somebody-else"), set()) == []
    assert workers.left("exited")


def test_a_sandbox_that_somebody_else_ends_is_lost_and_not_failed(
    make_backend: Callable[..., Backend], sandbox_image: str
) -> None:
    backend = make_backend()
    lost: list[BaseException] = []

    def run() -> None:
        try:
            sh(backend, sandbox_image, "sleep 60", deadline_seconds=60)
        except SandboxLost as error:
            lost.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while [one.state for one in backend.find()] != ["running"]:
        time.sleep(0.05)
    prove_death(backend, STEP)
    thread.join(20)
    assert len(lost) == 1


def test_an_image_that_is_not_there_is_said_so(backend: Backend) -> None:
    missing = "sha256:" + "0" * 64
    assert not backend.has_image(missing)
    with pytest.raises(ImageUnavailable, match=missing):
        sh(backend, missing, "true")
