"""Each limit stops what it limits, and the result says by evidence what did."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from ledger.errors import LeaseLost
from policy.ceilings import MIB, Limits
from runners.sandbox.backend import Backend, SandboxLost
from tests.sandbox.inside import python, sh, spec_of, tar_of

pytestmark = pytest.mark.engine

TIGHT = Limits(memory_bytes=128 * MIB, workspace_bytes=16 * MIB, tmp_bytes=16 * MIB)

FLEES = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print('fleeing', flush=True)
if os.fork():
    time.sleep(60)
os.setsid()
if os.fork():
    os._exit(0)
for pid in os.listdir('/proc'):
    if pid.isdigit() and int(pid) != os.getpid():
        try:
            os.kill(int(pid), signal.SIGSTOP)
        except OSError:
            pass
while True:
    time.sleep(0.01)
"""


@pytest.mark.every_runtime
def test_memory_stops_at_its_limit_and_that_is_told_from_an_ordinary_kill(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    hungry = python(backend, sandbox_image, "x = b'x' * (1 << 30)", limits=TIGHT)
    # gVisor's kernel is what this machine's kills, with all that is in it.
    assert (hungry.ended, hungry.signal, hungry.oom_kills) == ("oom_killed", None if own_kernel else 9, 1)
    if hungry.peak_memory_bytes is not None:
        assert 100 * MIB < hungry.peak_memory_bytes <= 128 * MIB
    else:
        assert own_kernel  # it shows no cgroup, and an engine counts no peak

    killed = sh(backend, sandbox_image, "kill -9 $$")
    assert (killed.ended, killed.signal, killed.oom_killed) == ("signalled", 9, False)
    exited = sh(backend, sandbox_image, "exit 137")
    assert (exited.ended, exited.exit_code, exited.signal) == ("exited", 137, None)


def test_a_command_that_outlives_an_oom_kill_is_not_called_killed(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    result = sh(backend, sandbox_image, "python3 -c \"x = b'x' * (1 << 30)\"; echo $?", limits=TIGHT)
    found = (result.ended, result.output, result.oom_killed, result.oom_kills)
    # Nothing outlives gVisor's kernel.
    assert found == (("oom_killed", b"", True, 1) if own_kernel else ("exited", b"Killed\n137\n", False, 1))


@pytest.mark.parametrize("place", ["/workspace", "/tmp"])
def test_a_disk_stops_at_its_size(backend: Backend, sandbox_image: str, place: str) -> None:
    result = sh(backend, sandbox_image, f"cat /dev/zero > {place}/zeros", limits=TIGHT)
    assert (result.ended, result.exit_code, result.oom_kills) == ("disk_full", 1, 0)
    assert result.evidence["full"] == [place]


def test_a_disk_of_many_empty_files_is_full_too(backend: Backend, sandbox_image: str, own_kernel: bool) -> None:
    code = "import itertools\nfor i in itertools.count(): open(f'/tmp/{i}', 'w').close()"
    ended = python(backend, sandbox_image, code, limits=TIGHT).ended
    # gVisor counts no inodes: memory or time ends it.
    assert ended in (("oom_killed", "timed_out") if own_kernel else ("disk_full",))


def test_a_failure_on_a_disk_with_room_is_no_full_disk(backend: Backend, sandbox_image: str) -> None:
    assert sh(backend, sandbox_image, "head -c 8M /dev/zero > /tmp/a; exit 1", limits=TIGHT).ended == "exited"


def test_files_that_do_not_fit_never_meet_the_command(backend: Backend, sandbox_image: str) -> None:
    result = sh(backend, sandbox_image, "echo ran", {"big": bytes(20 * MIB)}, limits=TIGHT)
    assert (result.ended, result.unpacked, result.exit_code) == ("disk_full", False, None)
    assert b"ran\n" not in result.output


def test_one_file_stops_at_its_size(backend: Backend, sandbox_image: str) -> None:
    limits = Limits(file_size_bytes=MIB)
    result = python(backend, sandbox_image, "open('a', 'wb').write(bytes(2 << 20))", limits=limits)
    assert b"File too large" in result.output
    assert result.exit_code == 1


@pytest.mark.every_runtime
def test_a_fork_bomb_stops_at_the_limit_and_leaves_no_process(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    code = """
import os, time
children = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        children += 1
except BlockingIOError:
    print(children, flush=True)
os.fork()
"""
    if own_kernel:  # gVisor's kernel can have no more threads, and ends with all that is in it
        with pytest.raises(SandboxLost):
            python(backend, sandbox_image, code, limits=Limits(pids=32), deadline_seconds=10)
        return
    result = python(backend, sandbox_image, code, limits=Limits(pids=32), deadline_seconds=10)
    assert int(result.output.split()[0]) < 32
    assert result.refused_forks >= 1
    assert result.exit_code == 1


def test_a_bomb_that_keeps_exploding_ends_at_the_deadline(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    began = time.monotonic()
    if own_kernel:
        with pytest.raises(SandboxLost):
            python(backend, sandbox_image, bomb, limits=Limits(pids=64), deadline_seconds=20)
        assert time.monotonic() - began < 20
        return
    result = python(backend, sandbox_image, bomb, limits=Limits(pids=64), deadline_seconds=1)
    assert result.ended == "timed_out"
    assert time.monotonic() - began < 10


def test_orphans_are_reaped(backend: Backend, sandbox_image: str) -> None:
    """Twice 500 processes one after the other fit into 16, if somebody clears away what their parents leave."""
    code = """
import os, time
def fork():
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.01)  # a machine with much to do clears away late
for _ in range(500):
    child = fork()
    if child == 0:
        fork(); os._exit(0)
    os.waitpid(child, 0)
print('done')
"""
    result = python(backend, sandbox_image, code, limits=Limits(pids=16), deadline_seconds=60)
    assert (result.output, result.exit_code) == (b"done\n", 0)


def test_open_files_core_dumps_and_locked_memory_are_limited(backend: Backend, sandbox_image: str) -> None:
    result = sh(backend, sandbox_image, "ulimit -n; ulimit -c; ulimit -f", limits=Limits(open_files=100))
    assert result.output.split() == [b"100", b"0", str(256 * MIB // 512).encode()]


def test_a_process_that_flees_is_ended_by_the_fuse_inside(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    result = python(backend, sandbox_image, FLEES, deadline_seconds=1)
    assert (result.ended, result.exit_code, result.signal) == ("timed_out", None, None)
    if own_kernel:  # where the fuse can be stopped: our own clock ends it, and nobody took it for an exit
        assert (result.evidence["ended_by_us"], result.evidence["reported"]) == ("timed_out", False)
        return
    assert result.evidence["ended_by_us"] is None
    assert result.evidence["reported"] is True
    assert 1000 <= result.timings.run_ms < 1500
    assert result.output == b"fleeing\n"


def test_and_by_our_own_clock_should_the_fuse_fail(make_backend: Callable[..., Backend], sandbox_image: str) -> None:
    early = make_backend(grace_seconds=-19.0)
    result = python(early, sandbox_image, FLEES, deadline_seconds=20)
    assert result.ended == "timed_out"
    assert result.evidence["ended_by_us"] == "timed_out"
    assert result.evidence["reported"] is False
    assert 900 <= result.timings.run_ms < 3000
    assert result.output == b"fleeing\n"


def test_what_ran_on_in_the_background_does_not_outlive_the_command(backend: Backend, sandbox_image: str) -> None:
    script = "(while :; do echo x >> grows; done) & sleep 0.2; echo done"
    result = sh(backend, sandbox_image, script, export_workspace=True)
    assert (result.output, result.exit_code, result.workspace_state) == (b"done\n", 0, "ok")
    assert result.timings.run_ms < 2000


def test_a_signal_is_told_from_an_exit_status(backend: Backend, sandbox_image: str) -> None:
    for number in (2, 6, 11, 13, 15):
        result = sh(backend, sandbox_image, f"kill -{number} $$")
        assert (result.exit_code, result.signal, result.ended) == (None, number, "signalled")


@pytest.mark.parametrize("command", ["no-such-command", "/etc/passwd", "./missing", "/workspace"])
def test_a_command_that_is_not_there_is_told_from_one_that_exits_with_127(
    backend: Backend, sandbox_image: str, command: str
) -> None:
    result = backend.run(spec_of(sandbox_image, command), tar_of())
    assert (result.ended, result.exit_code) == ("command_not_found", None)
    found = sh(backend, sandbox_image, "exit 127")
    assert (found.ended, found.exit_code) == ("exited", 127)


def test_a_refused_registration_prevents_the_sandbox(make_backend: Callable[..., Backend], sandbox_image: str) -> None:
    class Refusing:
        def __init__(self, at: str) -> None:
            self.at, self.marks = at, []

        def register(self, spec: object) -> str:
            self.mark("", "registered", {})
            return f"refused-{os.getpid()}-{self.at}"

        def mark(self, name: str, state: str, evidence: object) -> None:
            self.marks.append(state)
            if state == self.at:
                raise LeaseLost

    for at, marks in (("registered", ["registered"]), ("created", ["registered", "created", "removed"])):
        registry = Refusing(at)
        backend = make_backend(registry=registry)
        with pytest.raises(LeaseLost):
            sh(backend, sandbox_image, "true")
        assert registry.marks == marks
        assert backend.find() == []


def test_the_least_that_may_be_asked_for_is_enough_for_a_command(backend: Backend, sandbox_image: str) -> None:
    """The floor of each limit, so that a job that wishes for less is refused at submission and not when it starts."""
    least = {name: next(bound.ge for bound in field.metadata if hasattr(bound, "ge"))
             for name, field in Limits.model_fields.items()}  # fmt: skip
    limits = Limits.model_validate(least)
    result = sh(backend, sandbox_image, "echo here; cat a", {"a": b"b"}, limits=limits, deadline_seconds=60)
    assert (result.ended, result.exit_code, result.output) == ("exited", 0, b"here\nb")
