"""The life of one sandbox, from its registration to the proof that it is gone.

register → write the bundle → have it started → write the files, read output and report → (kill) → count → remove →
look. Until the runtime is started nothing runs, so what is refused before is prevented. Whatever fails on the way, what
was made is removed; what a crash of this very process leaves is found by the name of its folder.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ledger.faults import crash_point
from runners.disk import full_disk_told
from runners.sandbox import wrapper
from runners.sandbox.backend import EngineUnavailable, NotArmed, Registry, SandboxLost
from runners.sandbox.egress.entrance import entrance
from runners.sandbox.egress.outlet import Outlet, outlet_of
from runners.sandbox.oci import removal
from runners.sandbox.oci.bundle import Ground, config
from runners.sandbox.oci.cgroups import Cgroups
from runners.sandbox.oci.launcher import Channel, Launcher, StartFailed
from runners.sandbox.oci.places import Labels, Places
from runners.sandbox.oci.runtime import Runtime
from runners.sandbox.oci.stream import Pipes, Streams
from runners.sandbox.orders import Changes, command_orders, files_orders, new_mark
from runners.sandbox.outcome import Outcome, kernel_oom_kills, result_of
from runners.sandbox.oversee import Overseer, Why
from runners.sandbox.spec import EngineFacts, SandboxPlace, SandboxResult, SandboxSpec, Timings

START_SECONDS = 70.0
"""More than the launcher gives a runtime, so that its word on the failure is heard."""
LOG_BYTES = 2000


@dataclass(frozen=True)
class Host:
    """What all sandboxes of a backend have in common."""

    places: Places
    cgroups: Cgroups
    runtime: Runtime
    launcher: Launcher
    registry: Registry
    owner: str
    facts: EngineFacts
    grace_seconds: float


class Run:
    """One use of one sandbox: `result` from beginning to end, or `arm`, and then `fire` or `discard`."""

    def __init__(self, host: Host, place: SandboxPlace, ground: Ground) -> None:
        """Registers it. Raises what the registry does."""
        self._host, self._place = host, place
        self._began = time.monotonic()
        arguments = wrapper.argv(ground.architecture, place.armed_seconds, proxied=place.network is not None)
        self.name = host.registry.register(place)
        crash_point("sandbox.after_register")
        self._lap = time.monotonic()
        self._labels = Labels.of(place, host.owner, self.name)
        self._folder = host.places.sandbox(self._labels)
        self._config = config(ground, place.limits, arguments, host.cgroups.path(self.name))
        self._took: dict[str, int] = {}
        self._created = self._starting = self._waits = False
        self._open, self._held = ExitStack(), ExitStack()

    def hold(self, what: ExitStack) -> None:
        """Give `what` back when this sandbox is gone."""
        self._held = what

    def result(self, spec: SandboxSpec, files: Iterable[bytes], cancel: threading.Event | None) -> SandboxResult:
        """Run one command over `files`. Raises as `Backend.run` does."""
        try:
            mark = new_mark()
            with outlet_of(spec, self._host.registry) as outlet:
                first, command = files_orders(files), command_orders(spec, mark)
                self._begin(first if outlet else chain(first, command), last=outlet is None)
                self._host.registry.mark(self.name, "running", {"pid": self._channel.pid})
                crash_point("sandbox.after_start")
                self._streams.expect(spec, mark)
                if outlet is not None:
                    self._open_network(outlet)
                    self._streams.tell(command)
                outcome = self._watch(spec, cancel)
            crash_point("sandbox.after_exit")
        finally:
            self._remove()
        return self._result(spec, outcome)

    def arm(self, files: Iterable[bytes], cancel: threading.Event | None) -> None:
        """Have it wait with its first files in it. Whatever fails, it is gone then. Raises NotArmed and as `run`."""
        try:
            self._begin(files_orders(files), last=False)
            crash_point("sandbox.after_start")
            why = self._streams.arm(Overseer(self._place.limits, 0, cancel, self._host.grace_seconds))
            if not self._streams.report.armed:
                raise NotArmed(f"the sandbox does not wait for a command ({why or 'it ended'})")
            self._host.registry.mark(self.name, "armed", {"pid": self._channel.pid})
            self._waits = True
            crash_point("sandbox.after_arm")
        except BaseException:
            self._remove()
            raise

    def fire(self, spec: SandboxSpec, changes: Changes, cancel: threading.Event | None) -> SandboxResult:
        """Run its one command over its files with `changes`. Raises NotArmed when it cannot, and nothing was sent;
        otherwise as `Backend.run`."""
        if not self._waits:
            raise NotArmed("it serves once, when it is armed")
        self._waits = False
        self._began = self._lap = time.monotonic()
        self._took = {}
        try:
            if self._channel.status is None:
                self._channel.receive()
            if self._channel.status is not None:
                raise NotArmed("the sandbox has ended while it waited")
            self._host.registry.bind(self.name, spec)
            crash_point("sandbox.after_bind")
            mark = new_mark()
            self._streams.expect(spec, mark)
            self._streams.tell(command_orders(spec, mark, changes))
            outcome = self._watch(spec, cancel)
            crash_point("sandbox.after_exit")
        finally:
            self._remove()
        return self._result(spec, outcome, armed=True)

    def discard(self) -> None:
        """Remove an armed one that nobody needs. Raises EngineUnavailable."""
        if not self._created:
            self._host.registry.mark(self.name, "removed", {"sandbox": "was not made"})
        self._remove()

    def _begin(self, orders: Iterable[bytes], *, last: bool) -> None:
        """Write the bundle and have it started."""
        host = self._host
        _make(self._folder)
        self._created = True
        _write(self._folder / "config.json", self._config)
        self._stop_watch("create_ms")
        host.registry.mark(self.name, "created", {"folder": self._labels.key})
        crash_point("sandbox.after_create")
        argv = host.runtime.start(host.places.states, self._folder, self.name)
        self._starting = True
        pipes = self._open.enter_context(closing(Pipes.make()))
        self._channel = self._open.enter_context(
            closing(host.launcher.launch(argv, self._folder / "pid", pipes.theirs))
        )
        pipes.close_theirs()
        self._streams = Streams(pipes, self._channel, self._place.limits, orders, last=last)
        self._wait_started(self._labels, self._channel, pipes)

    def _open_network(self, outlet: Outlet) -> None:
        """Nothing of the job has run yet."""
        if (pid := self._channel.pid) is None:
            raise SandboxLost("the sandbox has no first process")
        with entrance(pid, lambda found: found in self._host.cgroups.processes(self.name)) as way:
            outlet.open(way)
        crash_point("sandbox.after_listen")

    def _watch(self, spec: SandboxSpec, cancel: threading.Event | None) -> Outcome:
        overseer = Overseer(spec.limits, spec.deadline_seconds, cancel, self._host.grace_seconds)
        why = self._streams.run(overseer)
        if why is not None:
            self._channel.kill()
            self._streams.drain()
        self._took |= overseer.took_ms()
        self._lap = time.monotonic()
        return self._outcome(self.name, self._streams, self._channel, why)

    def _result(self, spec: SandboxSpec, outcome: Outcome, *, armed: bool = False) -> SandboxResult:
        self._took["total_ms"] = _ms_since(self._began)
        return result_of(spec, self.name, outcome, Timings(**self._took), self._host.facts, armed=armed)

    def _wait_started(self, labels: Labels, channel: Channel, pipes: Pipes) -> None:
        try:
            channel.wait_started(START_SECONDS)
        except StartFailed as failed:
            if not (self._host.places.sandbox(labels) / "config.json").exists():
                raise SandboxLost("the sandbox was removed from outside while it was started") from failed
            said = complaint(self._host.places.sandbox(labels), pipes.errors)
            raise StartFailed(f"{failed.message}: {said}") from failed
        self._starting = False
        self._stop_watch("start_ms")

    def _outcome(self, name: str, streams: Streams, channel: Channel, why: Why | None) -> Outcome:
        """Without a report, PID 1 did not end by itself: it reports before it ends. The kernel's count says whether
        memory was the reason."""
        streams.output.end()
        seen = self._host.cgroups.facts(name)
        if streams.report.facts is None and why is None:
            status = os.waitstatus_to_exitcode(channel.status or 0)
            if status != -signal.SIGKILL or not kernel_oom_kills(seen):
                said = streams.output.tail[-300:].decode(errors="replace")
                raise SandboxLost(f"the sandbox ended from outside, or its first process failed ({status}): {said}")
        return Outcome(report=streams.report, output=streams.output, why=why, seen=seen)

    def _remove(self) -> None:
        """Kill what runs, remove what was made, and see that nothing is left; then give back what was held."""
        with self._held:
            self._open.close()
            if self._created:
                self._remove_all()

    def _remove_all(self) -> None:
        host, labels = self._host, self._labels
        if self._starting:  # a runtime may still be at work, and would go on to make what was just removed
            removal.stop_runtimes(host.places, labels)
        remains = removal.remove(host.places, host.cgroups, labels, host.launcher.pid)
        if not remains.gone:
            raise EngineUnavailable(f"the sandbox {labels.name} is still there after its removal: {remains}")
        self._stop_watch("remove_ms")
        host.registry.mark(labels.name, "removed", remains.plain())

    def _stop_watch(self, stage: str) -> None:
        self._took[stage] = _ms_since(self._lap)
        self._lap = time.monotonic()


def _make(folder: Path) -> None:
    """The sandbox's folder; nothing that is there already is touched."""
    try:
        with full_disk_told(folder.parent):
            folder.mkdir(mode=0o700)
    except OSError as refused:
        raise EngineUnavailable(f"{folder}: {refused.strerror}") from refused


def _write(file: Path, text: str) -> None:
    try:
        with full_disk_told(file.parent.parent):
            file.write_text(text)
    except OSError as refused:
        raise EngineUnavailable(f"{file}: {refused.strerror}") from refused


def complaint(folder: Path, errors: int) -> str:
    """What a runtime said that failed, in its log or on the stream that would have been the report's."""
    try:
        logged = (folder / "log").read_bytes()
    except OSError:
        logged = b""
    try:
        said = os.read(errors, LOG_BYTES)
    except BlockingIOError:
        said = b""
    return " ".join((logged or said)[-LOG_BYTES:].decode(errors="replace").split())


def _ms_since(moment: float) -> int:
    return round(1000 * (time.monotonic() - moment))
