"""The life of one container, from its registration to the proof that it is gone.

register → create → attach → start → write the files → (wait, armed) → write the command, read output and report →
(kill) → remove → look. Whatever fails on the way, what was created is removed; what a crash of this very process leaves
is found by its labels.

One that was armed answers sooner: it is proved dead by the kernel's word on its first process and its cgroup, and what
the engine then takes to notice that and to remove the container is nobody's wait. Until that is done too it is `exited`
in the register, and whoever looks for what is left finds it there.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import requests
from docker import APIClient
from docker.errors import APIError

from ledger.errors import DiskFull, PatchyardError
from ledger.faults import crash_point
from runners.disk import says_full
from runners.sandbox.backend import EngineUnavailable, ImageUnavailable, NotArmed, Registry, SandboxLost
from runners.sandbox.docker.connection import Connections
from runners.sandbox.docker.create import LABEL_SANDBOX
from runners.sandbox.docker.process import FirstProcess, is_of
from runners.sandbox.docker.removal import is_gone, remove
from runners.sandbox.docker.stream import Streams
from runners.sandbox.egress.entrance import entrance
from runners.sandbox.egress.outlet import Outlet, outlet_of
from runners.sandbox.orders import Changes, command_orders, files_orders, new_mark
from runners.sandbox.outcome import Outcome, result_of
from runners.sandbox.oversee import Overseer, Why
from runners.sandbox.spec import EngineFacts, SandboxPlace, SandboxResult, SandboxSpec, Timings

SIGKILL_STATUS = 137


@dataclass(frozen=True)
class Engine:
    """What all sandboxes of a backend have in common. `local` are engines whose processes this machine's kernel shows,
    and `later` has something done when there is time for it."""

    connections: Connections
    registry: Registry
    facts: EngineFacts
    grace_seconds: float
    local: bool
    later: Callable[[Callable[[], None]], object]


class Run:
    """One use of one sandbox: `result` from beginning to end, or `arm`, and then `fire` or `discard`."""

    def __init__(self, engine: Engine, place: SandboxPlace, body: dict[str, Any]) -> None:
        """Registers it. `body` describes the container. Raises what the registry does."""
        self._engine, self._place, self._body = engine, place, body
        self._began = time.monotonic()
        self.name = engine.registry.register(place)
        crash_point("sandbox.after_register")
        self._lap = time.monotonic()
        self._took: dict[str, int] = {}
        self._open = ExitStack()
        self._created = self._waits = False
        self._key = ""
        self._first: FirstProcess | None = None

    def result(self, spec: SandboxSpec, files: Iterable[bytes], cancel: threading.Event | None) -> SandboxResult:
        """Run one command. Raises as `Backend.run` does."""
        try:
            with self._engine.connections.our_errors(), outlet_of(spec, self._engine.registry) as outlet:
                streams, mark = self._begin(), new_mark()
                self._engine.registry.mark(self.name, "running", {})
                crash_point("sandbox.after_start")
                streams.expect(spec, mark)
                if outlet is not None:
                    self._open_network(outlet)
                orders = chain(files_orders(files), command_orders(spec, mark))
                outcome = self._watch(streams, spec, orders, cancel)
            crash_point("sandbox.after_exit")
        finally:
            self._remove()
        return self._result(spec, outcome)

    def arm(self, files: Iterable[bytes], cancel: threading.Event | None) -> None:
        """Have it wait with its first files in it. Whatever fails, it is gone then. Raises NotArmed and as `run`."""
        try:
            with self._engine.connections.our_errors():
                streams = self._begin()
                crash_point("sandbox.after_start")
                overseer = Overseer(self._place.limits, 0, cancel, self._engine.grace_seconds)
                why = streams.arm(files_orders(files), overseer)
                if not streams.report.armed:
                    raise NotArmed(f"the sandbox does not wait for a command ({why or 'it ended'})")
                if self._engine.local:
                    self._first = self._open.enter_context(FirstProcess.of(self._client, self._key))
                self._engine.registry.mark(self.name, "armed", {})
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
        dead = False
        try:
            with self._engine.connections.our_errors():
                if self._first is not None and self._first.is_dead():
                    raise NotArmed("the sandbox has ended while it waited")
                self._engine.registry.bind(self.name, spec)
                crash_point("sandbox.after_bind")
                mark = new_mark()
                self._streams.expect(spec, mark)
                outcome = self._watch(self._streams, spec, command_orders(spec, mark, changes), cancel)
                crash_point("sandbox.after_exit")
                dead = self._first is not None and self._first.is_proved_dead()
        finally:
            if not dead:
                self._remove()
        if dead:
            self._engine.registry.mark(self.name, "exited", {"container": self._key, "first_process": "dead"})
            self._engine.later(self._remove_quietly)
        return self._result(spec, outcome, armed=True)

    def discard(self) -> None:
        """Remove an armed one that nobody needs. Raises EngineUnavailable."""
        if self._created:
            self._remove()
        else:
            self._engine.registry.mark(self.name, "removed", {"container": "was not created"})

    def _begin(self) -> Streams:
        """Create, attach, start."""
        engine = self._engine
        self._body["Labels"][LABEL_SANDBOX] = self.name
        self._client: APIClient = self._open.enter_context(engine.connections.client())
        self._created = True
        created = self._client.create_container_from_config(self._body, self.name)  # type: ignore[no-untyped-call]
        self._key = str(created["Id"])
        self._stop_watch("create_ms")
        engine.registry.mark(self.name, "created", {"container": self._key})
        crash_point("sandbox.after_create")
        self._streams = Streams(self._attach(), self._place.limits)
        self._start()
        return self._streams

    def _open_network(self, outlet: Outlet) -> None:
        """Nothing of the job has been sent yet."""
        pid = int(self._client.inspect_container(self._key)["State"]["Pid"])
        with entrance(pid, lambda found: is_of(found, self._key)) as way:
            outlet.open(way)
        crash_point("sandbox.after_listen")

    def _attach(self) -> socket.socket:
        """The connection that carries a container's streams. It must be there before the container starts."""
        stream = self._client.attach_socket(self._key, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        # The SDK hangs the response on the socket to keep both alive; closing it closes the socket.
        self._open.callback(getattr(stream, "_response", stream).close)
        connection: socket.socket = getattr(stream, "_sock", stream)
        return connection

    def _start(self) -> None:
        try:
            self._client.start(self._key)
        except APIError as refused:
            text = str(refused.explanation)
            if "executable file not found" in text or "no such file or directory" in text:
                raise ImageUnavailable(
                    f"the image cannot serve as a sandbox, it needs perl, tar and find: {text}"
                ) from refused
            if says_full(text):
                raise DiskFull(f"the engine could not start a sandbox: {text}") from refused
            raise EngineUnavailable(f"the engine could not start a sandbox: {text}") from refused
        self._stop_watch("start_ms")

    def _watch(
        self, streams: Streams, spec: SandboxSpec, orders: Iterable[bytes], cancel: threading.Event | None
    ) -> Outcome:
        overseer = Overseer(spec.limits, spec.deadline_seconds, cancel, self._engine.grace_seconds)
        why = streams.run(orders, overseer, until_complete=self._first is not None)
        if why is not None:
            self._kill(streams)
        self._took |= overseer.took_ms()
        self._lap = time.monotonic()
        return self._outcome(streams, why)

    def _kill(self, streams: Streams) -> None:
        """Kill the container while its output is read on: the engine answers only when it has got rid of that."""
        killer = threading.Thread(target=self._ask_to_kill)
        killer.start()
        streams.drain()
        killer.join()

    def _ask_to_kill(self) -> None:
        # Whatever goes wrong here shows again, and is raised, when the container is removed.
        with suppress(PatchyardError), self._engine.connections.client() as client:
            client.kill(self._key)

    def _outcome(self, streams: Streams, why: Why | None) -> Outcome:
        """Without a report, the engine's word on the exit is all there is, and it must not be taken for the
        command's: PID 1 reports before it ends, so somebody ended it."""
        streams.output.end()
        report = streams.report
        killed_by_oom = False
        if report.facts is None and why is None:
            self._engine.connections.require_listener()
            code = self._client.wait(self._key)["StatusCode"]
            state = self._client.inspect_container(self._key)["State"]
            killed_by_oom = bool(state.get("OOMKilled")) and code == SIGKILL_STATUS
            if not killed_by_oom:
                raise SandboxLost(f"the sandbox ended from outside, or its first process failed (status {code})")
        return Outcome(report=report, output=streams.output, why=why, first_process_oom_killed=killed_by_oom)

    def _result(self, spec: SandboxSpec, outcome: Outcome, *, armed: bool = False) -> SandboxResult:
        self._took["total_ms"] = _ms_since(self._began)
        return result_of(spec, self.name, outcome, Timings(**self._took), self._engine.facts, armed=armed)

    def _remove(self) -> None:
        """Remove what was created, and see that it is gone; then give back what was open."""
        with self._open:
            if self._key:
                self._remove_container()

    def _remove_container(self) -> None:
        try:
            self._engine.connections.require_listener()
            remove(self._client, self._key)
            gone = is_gone(self._client, self._key)
        except (requests.RequestException, APIError, OSError) as lost:
            raise EngineUnavailable("the engine went away before the sandbox was removed") from lost
        if not gone:
            raise EngineUnavailable("the engine still has a sandbox that it has removed")
        self._stop_watch("remove_ms")
        self._engine.registry.mark(self.name, "removed", {"container": self._key, "inspected": "not found"})

    def _remove_quietly(self) -> None:
        """What fails here stays in the register as `exited`, and the reaper goes on with it."""
        with suppress(PatchyardError):
            self._remove()

    def _stop_watch(self, stage: str) -> None:
        self._took[stage] = _ms_since(self._lap)
        self._lap = time.monotonic()


def _ms_since(moment: float) -> int:
    return round(1000 * (time.monotonic() - moment))
