"""Sandboxes that were started ahead: what they see is what they would have seen, they serve once, and nobody who dies
leaves one that waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from policy.ceilings import KIB, MIB, Limits
from runners.sandbox.backend import Armed, Backend, NotArmed, SandboxLost
from runners.sandbox.orders import Changes
from runners.sandbox.reap import prove_death, reap
from runners.sandbox.spec import SandboxPlace, SandboxResult, SandboxSpec
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import STEP, spec_of, tar_of
from tests.sandbox.test_death import Workers, workers

__all__ = ["workers"]

pytestmark = pytest.mark.engine

ARMER = """
import sys, time
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import spec_of, tar_of
from tests.sandbox.kinds import connect
from tests.sandbox.test_armed import place_of
from runners.sandbox.orders import Changes
kind, where, owner, image, seconds, fence = sys.argv[1:]
backend = connect(kind, where, registry=MemoryRegistry(owner), owner=owner)
print('ready', flush=True)
armed = backend.arm(place_of(image, fence=int(fence), armed_seconds=float(seconds)))
armed.arm(tar_of(), None)
spec = spec_of(image, 'sleep', '60', deadline_seconds=60, fence=int(fence))
armed.fire(spec, Changes(), None)
"""


WAITER = ARMER.replace("print('ready', flush=True)\n", "").replace(
    "spec =", "print('ready', flush=True); time.sleep(60); spec ="
)


def place_of(image: str, **fields: Any) -> SandboxPlace:
    """A place like that of `spec_of`, whose sandbox waits."""
    plain = {"job_id": 70, "step_id": STEP, "fence": 1, "armed_seconds": 60.0}
    return SandboxPlace(image=image, **(plain | fields))


def armed(backend: Backend, image: str, files: dict[str, bytes] | None = None, **fields: Any) -> Armed:
    """One that waits with these files in it."""
    made = backend.arm(place_of(image, **fields))
    made.arm(tar_of(files), None)
    return made


def fired(one: Armed, image: str, script: str, changes: Changes | None = None, **fields: Any) -> SandboxResult:
    return one.fire(spec_of(image, "sh", "-c", script, **fields), changes or Changes(), None)


def gone(backend: Backend, timeout_seconds: float = 20) -> bool:
    """Whether nothing of the backend's is there any more, which may take the engine a moment."""
    until = time.monotonic() + timeout_seconds
    while backend.find():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.every_runtime
def test_it_runs_one_command_over_its_files_and_is_gone(backend: Backend, sandbox_image: str) -> None:
    one = armed(backend, sandbox_image, {"a": b"first\n"})
    assert [found.state for found in backend.find()] == ["running"]
    result = fired(one, sandbox_image, "cat a; echo err >&2; printf '<x/>' > /tmp/r; exit 3", reports=("/tmp/r",))
    assert (result.exit_code, result.output, result.reports[0].data) == (3, b"first\nerr\n", b"<x/>")
    assert result.sandbox == one.name
    assert gone(backend)
    with pytest.raises((NotArmed, SandboxLost)):
        fired(one, sandbox_image, "true")


@pytest.mark.every_runtime
def test_changes_come_before_the_command(backend: Backend, sandbox_image: str) -> None:
    files = {"kept": b"k", "changed": b"old", "gone": b"g", "folder/a": b"a", "folder/b/c": b"c", "becomes": b"f"}
    one = armed(backend, sandbox_image, files)
    changes = Changes(
        gone=(b"gone", b"folder", b"becomes", b"was-never"), files=tar_of({"changed": b"new", "becomes/folder": b"x"})
    )
    result = fired(one, sandbox_image, "find . -type f | sort; cat changed", changes)
    assert result.output == b"./becomes/folder\n./changed\n./kept\nnew"
    assert gone(backend)


def test_what_is_taken_away_is_never_followed_out(backend: Backend, sandbox_image: str) -> None:
    one = armed(backend, sandbox_image)
    result = fired(one, sandbox_image, "find /tmp /etc/passwd", Changes(gone=(b"../tmp/none", b"../etc/passwd")))
    assert (result.exit_code, result.output) == (0, b"/tmp\n/etc/passwd\n")


def test_output_ends_where_the_command_ends_it(backend: Backend, sandbox_image: str) -> None:
    """Also when it makes its output non-blocking, floods it at the end, and leaves somebody behind who writes on."""
    code = (
        "import os, subprocess, sys\n"
        "subprocess.Popen(['sh', '-c', 'while :; do echo more; done'], start_new_session=True)\n"
        "import time; time.sleep(0.2)\n"
        "os.set_blocking(1, False)\n"
        "os._exit(0)"
    )
    for _ in range(5):
        one = armed(backend, sandbox_image)
        result = one.fire(spec_of(sandbox_image, "python3", "-c", code), Changes(), None)
        assert result.exit_code == 0
        assert set(result.output_head + result.output_tail) <= set(b"more\n")
    one = armed(backend, sandbox_image)
    result = fired(one, sandbox_image, "seq 1 100000", limits=Limits(output_bytes=2 * KIB))
    assert result.output_bytes == 588_895
    assert result.output_tail.endswith(b"\n99999\n100000\n")


def test_limits_deadline_and_verdicts_are_those_of_any_other(backend: Backend, sandbox_image: str) -> None:
    small = Limits(memory_bytes=64 * MIB, workspace_bytes=8 * MIB, tmp_bytes=8 * MIB)
    hungry = "python3 -c 'x = bytearray(200 << 20)'"
    seen = [
        fired(armed(backend, sandbox_image, limits=limits), sandbox_image, script, limits=limits, **fields)
        for limits, script, fields in (
            (small, hungry, {}),
            (small, "head -c 20000000 /dev/zero > full", {}),
            (Limits(), "setsid sh -c \"trap '' TERM; sleep 60\" & sleep 60", {"deadline_seconds": 0.5}),
            (Limits(), "kill -9 $$", {}),
            (Limits(), "exit 137", {}),
        )
    ]
    assert [one.ended for one in seen] == ["oom_killed", "disk_full", "timed_out", "signalled", "exited"]
    assert gone(backend)


def test_a_cancelled_command_ends_at_once(backend: Backend, sandbox_image: str) -> None:
    one, cancel = armed(backend, sandbox_image), threading.Event()
    threading.Timer(0.5, cancel.set).start()
    result = one.fire(spec_of(sandbox_image, "sleep", "60"), Changes(), cancel)
    assert result.ended == "cancelled"
    assert gone(backend)


def test_one_that_nobody_needs_is_removed_and_registered_as_such(
    make_backend: Callable[..., Backend], sandbox_image: str
) -> None:
    registry = MemoryRegistry(f"needless-{os.getpid()}")
    backend = make_backend(registry=registry)
    one = armed(backend, sandbox_image)
    one.discard()
    assert backend.find() == []
    never = backend.arm(place_of(sandbox_image))
    never.discard()
    for name in (one.name, never.name):
        assert [state for marked, state in registry.marks if marked == name][-1] == "removed"


def test_one_that_waited_too_long_ends_by_itself_and_serves_nobody(backend: Backend, sandbox_image: str) -> None:
    one = armed(backend, sandbox_image, armed_seconds=0.5)
    until = time.monotonic() + 20
    while [found.state for found in backend.find()] != ["exited"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    with pytest.raises((NotArmed, SandboxLost)):
        fired(one, sandbox_image, "true")
    assert backend.find() == []


def test_what_the_registry_refuses_gets_no_command(make_backend: Callable[..., Backend], sandbox_image: str) -> None:
    class Refusing(MemoryRegistry):
        def bind(self, name: str, spec: SandboxSpec) -> None:
            raise NotArmed

    registry = Refusing(f"refusing-{os.getpid()}")
    backend = make_backend(registry=registry)
    with pytest.raises(NotArmed):
        fired(armed(backend, sandbox_image), sandbox_image, "true")
    assert backend.find() == []
    assert [state for _, state in registry.marks][-1] == "removed"


def test_files_that_do_not_fit_arm_nothing(backend: Backend, sandbox_image: str) -> None:
    small = Limits(memory_bytes=64 * MIB, workspace_bytes=1 * MIB, tmp_bytes=1 * MIB)
    one = backend.arm(place_of(sandbox_image, limits=small))
    with pytest.raises(NotArmed):
        one.arm(tar_of({"big": bytes(3 * MIB)}), None)
    assert backend.find() == []


@pytest.fixture
def armers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Workers that arm a sandbox and then run `sleep 60` in it."""
    monkeypatch.setattr("tests.sandbox.test_death.WORKER", ARMER)
    return workers


@pytest.mark.parametrize("point", ["sandbox.after_create", "sandbox.after_arm", "sandbox.after_bind"])
def test_a_killed_worker_leaves_none_that_waits(workers: Workers, armers: Workers, point: str) -> None:
    """Its end is seen inside at once: what is left is a dead one, which is found and removed."""
    armers.crashed_at(point)
    (found,) = armers.left("created" if point == "sandbox.after_create" else "exited", timeout_seconds=20)
    assert (found.job_id, found.step_id) == (70, STEP)
    assert [one.name for one in armers.backend.find(name=found.name)] == [found.name]
    assert armers.backend.find(name="another") == []
    assert [proof.gone for proof in prove_death(armers.backend, STEP)] == [True]


def test_one_whose_worker_is_stopped_ends_when_it_has_waited_too_long(
    armers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody closes its input, and nobody sees its end: the time that it may wait for is what ends it."""
    monkeypatch.setattr("tests.sandbox.test_death.WORKER", WAITER)
    worker = armers.start(seconds=3)
    try:
        while [found.state for found in armers.backend.find()] != ["running"]:
            assert worker.poll() is None
            time.sleep(0.02)
        worker.send_signal(signal.SIGSTOP)
        armers.left("exited", timeout_seconds=30)
    finally:
        worker.kill()
        worker.wait()
    assert [proof.gone for proof in reap(armers.backend, set())] == [True]
