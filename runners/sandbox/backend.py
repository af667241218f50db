"""What every backend of sandboxes can do, what it asks of the ledger, and the errors that it raises.

The order of things is the promise: a sandbox is registered before it is created, so that whoever comes after a crash
knows what to look for; and it is only called `removed` when its absence was seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from ledger.errors import Permanent, Temporary, Unfit
from ledger.records.base import Record
from runners.sandbox.orders import Changes
from runners.sandbox.spec import EngineFacts, NetworkRequest, SandboxPlace, SandboxResult, SandboxSpec

SandboxState = Literal["registered", "created", "armed", "running", "exited", "removed"]
"""`exited` is proved dead, and what is left of it is being removed."""


class EngineUnavailable(Temporary):
    """The container engine does not answer, or failed."""


class ImageUnavailable(Permanent):
    """The engine does not have this image, or it cannot serve as a sandbox."""


class SandboxLost(Temporary):
    """The sandbox was ended from outside: by the engine's stop, by a reaper, or by a person."""


class SandboxBroken(Permanent):
    """The sandbox did not do what a sandbox does."""


class NotArmed(Temporary):
    """There is no armed sandbox for this command any more. Nothing of the command was sent to it: run it anew."""


class NoNetwork(Unfit):
    """A sandbox here cannot be given the network that its job asks for."""


class Registry(Protocol):
    """Where sandboxes are written down. An error from any of these ends the sandbox and reaches the caller."""

    def register(self, place: SandboxPlace) -> str:
        """Write down that a sandbox is about to be created; its unique name comes back. May refuse, with LeaseLost, and
        then nothing is created."""
        ...

    def bind(self, name: str, spec: SandboxSpec) -> None:
        """Write down that the armed sandbox `name` runs the command of `spec`, and for which step. Refuses with
        NotArmed or LeaseLost, and then nothing is sent to it."""
        ...

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        """Write down how far it has got. After `created` nothing runs yet: refusing here still prevents it."""
        ...

    def note_requests(self, place: SandboxPlace, requests: Sequence[NetworkRequest], left_out: int) -> None:
        """Write down what the command of `place` asked of its network; `left_out` refusals are not among them."""
        ...


class FoundSandbox(Record):
    """A sandbox that a backend has, by what is written on it. `key` names it to the backend, `state` is its word."""

    key: str
    name: str
    job_id: int
    step_id: int
    fence: int
    state: str


class Evidence(Record):
    """The proof of one death: what it was when found, whether we killed it, and what was seen afterwards."""

    sandbox: str
    key: str
    found: str
    killed: bool
    gone: bool
    seen: dict[str, Any] = {}


class Recorded(Record):
    """One point of what a backend has on record of a sandbox, in plain JSON, beside what was asked for."""

    name: str
    asked: Any
    has: Any


RECORDED = (
    "image", "command", "user", "root", "network", "capabilities", "privileges", "seccomp", "memory", "processors",
    "processes", "per_process", "file_systems", "host_paths", "devices", "environment", "namespaces", "runtime",
)  # fmt: skip
"""The points that no backend may leave out. Of what was not asked for, the record has to have nothing."""


class Inspection(Record):
    """A running sandbox from outside. `pid` is its first process, where that is one of this machine's and seen as such
    by its kernel; a runtime that puts a kernel of its own in between has none."""

    pid: int | None
    points: tuple[Recorded, ...]


class StoredImage(Record):
    """An image that a backend keeps and that we loaded into it. `used_at` is in seconds since the epoch, as far as the
    backend can tell."""

    digest: str
    name: str
    size_bytes: int
    used_at: float


class Armed(Protocol):
    """A sandbox that is registered, and will wait for one command. Used by one thread at a time."""

    name: str

    def arm(self, files: Iterable[bytes], cancel: threading.Event | None) -> None:
        """Create it, and have it unpack `files` (a tar, in pieces) and wait. After an error nothing is left of it.

        Raises NotArmed, and as `Backend.run`.
        """
        ...

    def fire(self, spec: SandboxSpec, changes: Changes, cancel: threading.Event | None) -> SandboxResult:
        """Run its one command over its files with `changes`. All its processes are proved dead on return; what is left
        of it may still be on its way out, and is `exited` in the registry until then.

        Raises NotArmed when nothing was sent, and as `Backend.run`; it is gone then.
        """
        ...

    def discard(self) -> None:
        """Remove it, with the proof of its death. Raises EngineUnavailable, and what the registry raises."""
        ...


class Backend(Protocol):
    """A way to run sandboxes. One object serves many threads at once."""

    def run(self, spec: SandboxSpec, files: Iterable[bytes], cancel: threading.Event | None = None) -> SandboxResult:
        """Run one command over `files` (a tar, in pieces, of the workspace) and remove every trace of it.

        Raises EngineUnavailable, ImageUnavailable, SandboxLost, SandboxBroken, NoNetwork, and what the registry raises.
        """
        ...

    def arm(self, place: SandboxPlace) -> Armed:
        """Register a sandbox that will wait for its command, for `place.armed_seconds` at most.

        Raises ImageUnavailable, EngineUnavailable, and what the registry raises.
        """
        ...

    def settle(self) -> None:
        """Return when whatever was on its way out is gone, as far as it goes: sandboxes that are `exited`."""
        ...

    def has_image(self, digest: str) -> bool:
        """Whether an image of this manifest digest is at hand."""
        ...

    def load_image(self, layout: Path) -> str:
        """Make the image of an OCI layout available; its id here comes back."""
        ...

    def stored_images(self) -> list[StoredImage]:
        """The images that we loaded. Raises EngineUnavailable."""
        ...

    def remove_image(self, digest: str) -> bool:
        """Take away an image that we loaded, unless a sandbox has it; whether it is gone. Raises EngineUnavailable."""
        ...

    def folders(self) -> tuple[Path, ...]:
        """Where images and sandboxes lie, as far as that is on this machine."""
        ...

    def find(self, *, step_id: int | None = None, name: str | None = None) -> list[FoundSandbox]:
        """The sandboxes that this backend has, running or not: all, those of a step, or the one of a name. The step is
        that under which it was created, which for one that was armed is not the step that used it."""
        ...

    def destroy(self, found: FoundSandbox) -> Evidence:
        """Kill and remove one, and look whether it is gone."""
        ...

    def inspect(self, spec: SandboxSpec, found: FoundSandbox) -> Inspection:
        """What the backend's own record says of a running sandbox, which should be one of `spec`, point by point."""
        ...

    def facts(self) -> EngineFacts:
        """What the sandboxes run on."""
        ...

    def versions(self) -> dict[str, str]:
        """The version of each program that stands between a sandbox and its machine: of the engine (`docker`), of what
        it rests on, of the runtime; empty where it cannot be told. Raises EngineUnavailable."""
        ...

    def close(self) -> None:
        """Give back connections."""
        ...
