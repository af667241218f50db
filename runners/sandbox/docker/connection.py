"""Connections to the engine: a pool, since the SDK's client serves one thread at a time, and errors of our own family.

An engine that goes away in the middle of a call, or does not answer one in `CALL_SECONDS`, is `EngineUnavailable`,
which is Temporary; what the engine says about a request is told apart by its status, never by its words, but for a full
disk, which has no status of its own.
"""

from __future__ import annotations

import queue
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import requests
from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool
from requests.adapters import BaseAdapter

from ledger.errors import BadInput, DiskFull, Unfit
from runners.disk import says_full
from runners.sandbox.backend import EngineUnavailable, ImageUnavailable, SandboxBroken, SandboxLost
from runners.sandbox.oci.runtime import kind_of, version_of
from runners.sandbox.spec import EngineFacts

CALL_SECONDS = 60


class _Connection(UnixHTTPConnection):
    """The SDK leaves its socket open when nobody listens."""

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[arg-type]


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: str | bytes, proxies: object = None) -> _Pool:
        with self.pools.lock:
            if (pool := self.pools.get(url)) is None:
                pool = self.pools[url] = _Pool(str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size)
        return pool


class _Client(APIClient):
    """The SDK's client gives most of its calls a limit in time, and some none: an engine that went silent would have
    those wait for ever."""

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        if type(adapter) is UnixHTTPAdapter:
            adapter = _Adapter(adapter.socket_path, adapter.timeout, max_pool_size=adapter.max_pool_size)
        super().mount(prefix, adapter)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        if options.get("timeout") is None:
            options["timeout"] = self.timeout
        return super().send(request, **options)


class Connections:
    """Clients of one engine. Raises BadInput for an address that a sandbox's streams cannot go through."""

    def __init__(self, host: str) -> None:
        if not host.startswith(("unix://", "tcp://", "http://")):
            raise BadInput(
                "no such kind of engine address", where=host, remedy="use unix:///path/to/socket or tcp://host:port"
            )
        self.host = host
        self._idle: queue.LifoQueue[APIClient] = queue.LifoQueue()
        self._api_version: str | None = None

    @contextmanager
    def client(self) -> Iterator[APIClient]:
        """A client for the calling thread. What goes wrong with it comes out as an error of `ledger.errors`."""
        with self.our_errors():
            self.require_listener()
            client = self._take()
            try:
                yield client
            except BaseException:
                client.close()
                raise
            self._idle.put(client)

    def close(self) -> None:
        """Close the idle clients."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def facts(self, runtime: str | None) -> EngineFacts:
        """What the engine says of itself and of the machine below it."""
        with self.client() as client:
            version, machine = client.version(), client.info()
        name = runtime or machine["DefaultRuntime"]
        if name not in machine["Runtimes"]:
            raise BadInput(
                f"the engine has no runtime {name}",
                where="PATCHYARD_SANDBOX_RUNTIME",
                remedy=f"it has {', '.join(sorted(machine['Runtimes']))}",
            )
        return EngineFacts(
            backend="docker",
            host=self.host,
            version=version["Version"],
            runtime=name,
            runtime_version=self._runtime_version(name, _parts(version), machine),
            kernel=machine["KernelVersion"],
            architecture=machine["Architecture"],
            cgroup_version=int(machine.get("CgroupVersion") or 1),
            storage=machine["Driver"],
        )

    def versions(self, runtime: str | None) -> dict[str, str]:
        """See `Backend.versions`. A runtime that the engine knows nothing of but its path is asked itself, if it is
        on this machine."""
        with self.client() as client:
            version, machine = client.version(), client.info()
        parts = _parts(version)
        name = runtime or machine["DefaultRuntime"]
        found = self._runtime_version(name, parts, machine)
        return {"docker": version["Version"], "containerd": parts.get("containerd", ""), kind_of(name): found}

    def _runtime_version(self, name: str, parts: dict[str, str], machine: dict[str, Any]) -> str:
        found = parts.get(kind_of(name), "")
        path = shutil.which(machine["Runtimes"].get(name, {}).get("path") or name)
        if not found and path is not None and self.host.startswith("unix://"):
            with suppress(Unfit):
                found = version_of(path)
        return found

    def _take(self) -> APIClient:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            client = _Client(base_url=self.host, version=self._api_version or "auto", timeout=CALL_SECONDS)
            self._api_version = client.api_version
            return client

    def require_listener(self) -> None:
        """Raises OSError when nobody listens at the engine's socket."""
        if self.host.startswith("unix://"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(self.host.removeprefix("unix://"))

    @contextmanager
    def our_errors(self) -> Iterator[None]:
        """What goes wrong with the engine in this block comes out as an error of `ledger.errors`."""
        try:
            yield
        except ImageNotFound as missing:
            raise ImageUnavailable(f"the engine does not have the image: {missing.explanation}") from missing
        except NotFound as missing:
            raise SandboxLost(f"the sandbox is gone: {missing.explanation}") from missing
        except APIError as refused:
            if refused.is_server_error() and says_full(str(refused.explanation)):
                raise DiskFull(f"the engine at {self.host}: {refused.explanation}") from refused
            if refused.is_server_error():
                raise EngineUnavailable(f"the engine at {self.host} failed: {refused.explanation}") from refused
            raise SandboxBroken(f"the engine at {self.host} refused: {refused.explanation}") from refused
        except (requests.RequestException, DockerException, ConnectionError, TimeoutError, FileNotFoundError) as lost:
            raise EngineUnavailable(f"the engine at {self.host} does not answer ({type(lost).__name__})") from lost


def _parts(version: dict[str, Any]) -> dict[str, str]:
    """The versions of an engine's parts, by their names."""
    return {part["Name"]: str(part["Version"]) for part in version.get("Components") or ()}
