"""The life of one container, from its registration to the proof that it is gone.

register → create → attach → start → write the files, read output and report → (kill) → remove → look. Whatever fails on
the way, what was created is removed; what a crash of this very process leaves is found by its labels.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import requests
from docker import APIClient
from docker.errors import APIError

from ledger.errors import PatchyardError
from ledger.faults import crash_point
from runners.sandbox.backend import EngineUnavailable, ImageUnavailable, Registry, SandboxLost
from runners.sandbox.docker.connection import Connections
from runners.sandbox.docker.create import LABEL_SANDBOX
from runners.sandbox.docker.removal import is_gone, remove
from runners.sandbox.docker.stream import Streams
from runners.sandbox.outcome import Outcome, result_of
from runners.sandbox.oversee import Overseer, Why
from runners.sandbox.spec import EngineFacts, SandboxResult, SandboxSpec, Timings

SIGKILL_STATUS = 137


class Run:
    """One use of one sandbox."""

    def __init__(
        self, connections: Connections, registry: Registry, spec: SandboxSpec, facts: EngineFacts, grace_seconds: float
    ) -> None:
        self._connections, self._registry, self._spec, self._facts = connections, registry, spec, facts
        self._grace_seconds = grace_seconds
        self._lap = self._began = time.monotonic()
        self._took: dict[str, int] = {}

    def result(self, body: dict[str, Any], files: Iterable[bytes], cancel: threading.Event | None) -> SandboxResult:
        """Run the container that `body` describes. Raises as `Backend.run` does."""
        name = self._registry.register(self._spec)
        crash_point("sandbox.after_register")
        self._lap = time.monotonic()
        body["Labels"][LABEL_SANDBOX] = name
        with self._connections.client() as client:
            key = self._create(client, name, body)
            try:
                self._registry.mark(name, "created", {"container": key})
                crash_point("sandbox.after_create")
                outcome = self._live(client, name, key, files, cancel)
                crash_point("sandbox.after_exit")
            finally:
                self._remove(client, name, key)
        self._took["total_ms"] = _ms_since(self._began)
        return result_of(self._spec, name, outcome, Timings(**self._took), self._facts)

    def _create(self, client: APIClient, name: str, body: dict[str, Any]) -> str:
        created = client.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
        self._stop_watch("create_ms")
        return str(created["Id"])

    def _live(
        self, client: APIClient, name: str, key: str, files: Iterable[bytes], cancel: threading.Event | None
    ) -> Outcome:
        with _attached(client, key) as connection:
            self._start(client, key)
            self._registry.mark(name, "running", {})
            crash_point("sandbox.after_start")
            streams, overseer = Streams(connection, self._spec), Overseer(self._spec, cancel, self._grace_seconds)
            why = streams.run(files, overseer)
            if why is not None:
                self._kill(key, streams)
        self._took |= overseer.took_ms()
        self._lap = time.monotonic()
        return self._outcome(client, key, streams, why)

    def _kill(self, key: str, streams: Streams) -> None:
        """Kill the container while its output is read on: the engine answers only when it has got rid of that."""
        killer = threading.Thread(target=self._ask_to_kill, args=(key,))
        killer.start()
        streams.drain()
        killer.join()

    def _ask_to_kill(self, key: str) -> None:
        # Whatever goes wrong here shows again, and is raised, when the container is removed.
        with suppress(PatchyardError), self._connections.client() as client:
            client.kill(key)

    def _start(self, client: APIClient, key: str) -> None:
        try:
            client.start(key)
        except APIError as refused:
            text = str(refused.explanation)
            if "executable file not found" in text or "no such file or directory" in text:
                raise ImageUnavailable(
                    f"the image cannot serve as a sandbox, it needs perl, tar and find: {text}"
                ) from refused
            raise EngineUnavailable(f"the engine could not start a sandbox: {text}") from refused
        self._stop_watch("start_ms")

    def _outcome(self, client: APIClient, key: str, streams: Streams, why: Why | None) -> Outcome:
        """Without a report, the engine's word on the exit is all there is, and it must not be taken for the
        command's: PID 1 reports before it ends, so somebody ended it."""
        report = streams.report
        killed_by_oom = False
        if report.facts is None and why is None:
            self._connections.require_listener()
            code = client.wait(key)["StatusCode"]
            state = client.inspect_container(key)["State"]
            killed_by_oom = bool(state.get("OOMKilled")) and code == SIGKILL_STATUS
            if not killed_by_oom:
                raise SandboxLost(f"the sandbox ended from outside, or its first process failed (status {code})")
        return Outcome(report=report, output=streams.output, why=why, first_process_oom_killed=killed_by_oom)

    def _remove(self, client: APIClient, name: str, key: str) -> None:
        try:
            self._connections.require_listener()
            remove(client, key)
            gone = is_gone(client, key)
        except (requests.RequestException, APIError, OSError) as lost:
            raise EngineUnavailable("the engine went away before the sandbox was removed") from lost
        if not gone:
            raise EngineUnavailable("the engine still has a sandbox that it has removed")
        self._stop_watch("remove_ms")
        self._registry.mark(name, "removed", {"container": key, "inspected": "not found"})

    def _stop_watch(self, stage: str) -> None:
        self._took[stage] = _ms_since(self._lap)
        self._lap = time.monotonic()


@contextmanager
def _attached(client: APIClient, key: str) -> Iterator[socket.socket]:
    """The connection that carries a container's streams. It must be there before the container starts."""
    stream = client.attach_socket(key, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    try:
        yield getattr(stream, "_sock", stream)
    finally:
        # The SDK hangs the response on the socket to keep both alive; closing it closes the socket.
        getattr(stream, "_response", stream).close()


def _ms_since(moment: float) -> int:
    return round(1000 * (time.monotonic() - moment))
