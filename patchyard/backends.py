"""Which backend runs this machine's sandboxes, why that one, and how it is reached.

`auto` takes the fastest that works here: of the OCI runtimes that need no engine, if we are root, the first by which a
sandbox was just seen to be what it should be, and whose probe did not fail (see `proving`); else a Docker engine. What
was tried and why it was not taken goes with the choice. Whoever names an engine's address, or a backend, gets that and
nothing else: what was asked for is never silently replaced.

An *engine* is whatever has images and runs sandboxes. Its address is Docker's own, or `oci:` and a PATCHYARD_HOME.

The backends themselves are imported where they are used: most commands need none, and should not wait for them.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ledger.errors import BadInput, Permanent, Unfit
from patchyard.local.engine import DEFAULT_HOST
from patchyard.settings import Settings
from runners.sandbox.backend import Backend, Registry, SandboxState
from runners.sandbox.spec import NetworkRequest, SandboxPlace, SandboxSpec

OCI_ADDRESS = "oci:"
REMEDY = "as root: apt-get install crun, or runc, or docker.io"


@dataclass(frozen=True)
class Tried:
    """A backend and runtime, as `oci/crun`, that was not taken, and why not."""

    name: str
    error: Unfit | BadInput

    @property
    def why(self) -> str:
        """In one line."""
        return self.error.message


@dataclass(frozen=True)
class Chosen:
    """The backend, its runtime where that is settled, the reason for both, and what was tried before."""

    backend: Literal["docker", "oci"]
    runtime: str | None
    why: str
    tried: tuple[Tried, ...] = ()

    @property
    def name(self) -> str:
        """As `oci/crun`."""
        return f"{self.backend}/{self.runtime}" if self.runtime else self.backend

    def put_into(self, settings: Settings) -> Settings:
        """Settings that leave nothing to choose."""
        return settings.model_copy(update={"sandbox_backend": self.backend, "sandbox_runtime": self.runtime})


class NoSandboxes(Permanent):
    """This connection to the engine is for images only."""


class ImagesOnly:
    """A registry that refuses every sandbox."""

    def register(self, place: SandboxPlace) -> str:
        raise NoSandboxes

    def bind(self, name: str, spec: SandboxSpec) -> None:
        raise NoSandboxes

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        raise NoSandboxes

    def note_requests(self, place: SandboxPlace, requests: Sequence[NetworkRequest], left_out: int) -> None:
        raise NoSandboxes


def choose_backend(
    settings: Settings, *, home: Path | None = None, refuted: Mapping[str, str] = MappingProxyType({})
) -> Chosen:
    """The backend for these settings; `home` is where the sandbox that shows that it works is made, if not at home.

    `refuted` are those (`oci/crun`) that `auto` passes over, each with the reason. Raises Unfit or BadInput when the
    one that was asked for cannot be had.
    """
    require_backend(settings)
    runtime = settings.sandbox_runtime
    if settings.sandbox_backend == "oci":
        return _asked_for(home or settings.home, runtime)
    if settings.sandbox_backend != "auto":
        return Chosen("docker", runtime, "PATCHYARD_SANDBOX_BACKEND says so")
    if settings.docker_host is not None:
        return Chosen("docker", runtime, "an engine's address is set")
    tried: list[Tried] = []
    for one in _without_engine(home or settings.home, runtime, "the fastest that works here", refuted):
        if isinstance(one, Chosen):
            return replace(one, tried=tuple(tried))
        tried.append(one)
    return Chosen("docker", runtime, f"without an engine it does not go: {tried[0].why}", tuple(tried))


def require_backend(settings: Settings) -> None:
    """Raises Unfit when the backend that the settings name is not part of this version."""
    if settings.sandbox_backend == "kubernetes":
        raise Unfit(
            "the sandbox backend kubernetes is not available in this version",
            remedy="set PATCHYARD_SANDBOX_BACKEND to auto, docker or oci",
        )


def is_free(settings: Settings) -> bool:
    """Whether these settings leave the choice of the backend to us."""
    return settings.sandbox_backend == "auto" and settings.docker_host is None


@contextmanager
def passing_home() -> Iterator[Path]:
    """A folder for a look at what works here, of which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="patchyard-look-") as folder:
        yield Path(folder)
        remove_sandboxes(Path(folder))


def remove_sandboxes(home: Path) -> tuple[str, ...]:
    """Kill and remove the sandboxes without an engine of this PATCHYARD_HOME; the names of those that are left."""
    if not (home / "oci").is_dir():
        return ()
    from runners.sandbox.oci.removal import remove_all

    return tuple(remove_all(home))


def engine_address(backend: str, home: Path, docker_host: str | None) -> str | None:
    """The engine of a stack whose worker has these settings; None when it has none of its own."""
    if backend == "oci":
        return f"{OCI_ADDRESS}{home.resolve()}"
    return docker_host


def connect(address: str, registry: Registry, runtime: str | None = None) -> Backend:
    """A backend on the engine at `address`. Raises BadInput for one that is no address, Unfit."""
    if address.startswith(OCI_ADDRESS):
        from runners.sandbox.oci import OciBackend

        return OciBackend(Path(address.removeprefix(OCI_ADDRESS)), registry, runtime=runtime)
    from runners.sandbox.docker import DockerBackend

    return DockerBackend(address, registry, runtime=runtime)


def has_engine(address: str) -> bool:
    """Whether there is anything at `address` that could have an image, without making it."""
    return not address.startswith(OCI_ADDRESS) or Path(address.removeprefix(OCI_ADDRESS), "oci").is_dir()


def address_of(chosen: Chosen, settings: Settings) -> str:
    """The engine that a worker of these settings uses."""
    return engine_address(chosen.backend, settings.home, settings.docker_host) or DEFAULT_HOST


def name_in_ledger(address: str) -> str:
    """The engine's name among those of all workers: an address that means this machine gets its name."""
    return f"{socket.gethostname()} {address}" if address.startswith(("unix:", OCI_ADDRESS)) else address


def _asked_for(home: Path, runtime: str | None) -> Chosen:
    """The wanted runtime, or the fastest. Raises what the first that was tried failed with."""
    tried: list[Tried] = []
    for one in _without_engine(home, runtime, "PATCHYARD_SANDBOX_BACKEND says so", {}):
        if isinstance(one, Chosen):
            return replace(one, tried=tuple(tried))
        tried.append(one)
    raise tried[0].error


def _why_root() -> str:
    """What a user who is not root would have to have, to be bounded by the same limits."""
    from runners.sandbox.oci.rootless import lacking

    missing = lacking(os.geteuid())
    if not missing:
        return ", which alone they are tried with"
    return f": their limits of memory, processes and processors could not be enforced without {'; '.join(missing)}"


def _without_engine(home: Path, wanted: str | None, why: str, refuted: Mapping[str, str]) -> Iterator[Chosen | Tried]:
    """The OCI runtimes, the fastest first: chosen where a sandbox by it passes, else with what is wrong."""
    if os.geteuid() != 0:
        unfit = Unfit(f"sandboxes without an engine need root{_why_root()}", remedy=f"{REMEDY}, and run as root")
        yield Tried("oci", unfit)
        return
    from runners.sandbox.oci import OciBackend
    from runners.sandbox.oci.runtime import installed

    names = [wanted] if wanted else installed()
    if not names:
        yield Tried("oci", Unfit("there is no OCI runtime here", remedy=REMEDY))
    for runtime in names:
        name = f"oci/{runtime}"
        if name in refuted:
            yield Tried(name, Unfit(refuted[name], remedy=f"`patchyard probe --runtime {runtime}` shows the evidence"))
            continue
        try:
            backend = OciBackend(home, ImagesOnly(), runtime=runtime)
            try:
                seen = backend.self_test()
            finally:
                backend.close()
        except (Unfit, BadInput) as unfit:
            yield Tried(name, unfit)
        else:
            yield Chosen("oci", runtime, f"{why}: {seen.runtime} {seen.version}, tried in {seen.took_ms} ms")
