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
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ledger.faults import crash_point
from runners.sandbox import wrapper
from runners.sandbox.backend import EngineUnavailable, Registry, SandboxLost
from runners.sandbox.oci import removal
from runners.sandbox.oci.bundle import Ground, config
from runners.sandbox.oci.cgroups import Cgroups
from runners.sandbox.oci.launcher import Channel, Launcher, StartFailed
from runners.sandbox.oci.places import Labels, Places
from runners.sandbox.oci.runtime import Runtime
from runners.sandbox.oci.stream import Pipes, Streams
from runners.sandbox.outcome import Outcome, kernel_oom_kills, result_of
from runners.sandbox.oversee import Overseer, Why
from runners.sandbox.spec import EngineFacts, SandboxResult, SandboxSpec, Timings

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
    """One use of one sandbox."""

    def __init__(self, host: Host, spec: SandboxSpec, ground: Ground) -> None:
        self._host, self._spec, self._ground = host, spec, ground
        self._lap = self._began = time.monotonic()
        self._took: dict[str, int] = {}
        self._starting = False

    def result(self, files: Iterable[bytes], cancel: threading.Event | None) -> SandboxResult:
        """Run the command over `files`. Raises as `Backend.run` does."""
        host = self._host
        arguments = wrapper.argv(self._spec, self._ground.architecture)
        name = host.registry.register(self._spec)
        crash_point("sandbox.after_register")
        self._lap = time.monotonic()
        labels = Labels.of(self._spec, host.owner, name)
        folder = host.places.sandbox(labels)
        _make(folder)
        try:
            _write(folder / "config.json", config(self._ground, self._spec.limits, arguments, host.cgroups.path(name)))
            self._stop_watch("create_ms")
            host.registry.mark(name, "created", {"folder": labels.key})
            crash_point("sandbox.after_create")
            outcome = self._live(labels, files, cancel)
            crash_point("sandbox.after_exit")
        finally:
            self._remove(labels)
        self._took["total_ms"] = _ms_since(self._began)
        return result_of(self._spec, name, outcome, Timings(**self._took), host.facts)

    def _live(self, labels: Labels, files: Iterable[bytes], cancel: threading.Event | None) -> Outcome:
        host, folder = self._host, self._host.places.sandbox(labels)
        argv = host.runtime.start(host.places.states, folder, labels.name)
        self._starting = True
        with (
            closing(Pipes.make()) as pipes,
            closing(host.launcher.launch(argv, folder / "pid", pipes.theirs)) as channel,
        ):
            pipes.close_theirs()
            streams = Streams(pipes, channel, self._spec, files)
            self._wait_started(labels, channel, pipes)
            host.registry.mark(labels.name, "running", {"pid": channel.pid})
            crash_point("sandbox.after_start")
            overseer = Overseer(self._spec, cancel, host.grace_seconds)
            why = streams.run(overseer)
            if why is not None:
                channel.kill()
                streams.drain()
            self._took |= overseer.took_ms()
            self._lap = time.monotonic()
            return self._outcome(labels.name, streams, channel, why)

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
        seen = self._host.cgroups.facts(name)
        if streams.report.facts is None and why is None:
            status = os.waitstatus_to_exitcode(channel.status or 0)
            if status != -signal.SIGKILL or not kernel_oom_kills(seen):
                said = streams.output.tail[-300:].decode(errors="replace")
                raise SandboxLost(f"the sandbox ended from outside, or its first process failed ({status}): {said}")
        return Outcome(report=streams.report, output=streams.output, why=why, seen=seen)

    def _remove(self, labels: Labels) -> None:
        host = self._host
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
        folder.mkdir(mode=0o700)
    except OSError as refused:
        raise EngineUnavailable(f"{folder}: {refused.strerror}") from refused


def _write(file: Path, text: str) -> None:
    try:
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
