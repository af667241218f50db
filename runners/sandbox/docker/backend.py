"""The Docker backend: one container a command, hardened, watched, and gone when the result is returned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from docker import APIClient
from docker.errors import NotFound

from images.oci_layout import ARCHITECTURES, engine_archive, read_layout
from ledger.errors import DiskFull
from runners.disk import says_full
from runners.sandbox.backend import Evidence, FoundSandbox, ImageUnavailable, Inspection, Registry, StoredImage
from runners.sandbox.docker.connection import Connections
from runners.sandbox.docker.create import (
    LABEL_FENCE,
    LABEL_JOB,
    LABEL_OWNER,
    LABEL_SANDBOX,
    LABEL_STEP,
    LocalImage,
    container,
)
from runners.sandbox.docker.images import find_image, loaded_images, remove_image
from runners.sandbox.docker.inspect import TRANSPARENT, points
from runners.sandbox.docker.process import is_of
from runners.sandbox.docker.removal import is_gone, remove
from runners.sandbox.docker.run import Engine, Run
from runners.sandbox.egress.entrance import require_network
from runners.sandbox.spec import EngineFacts, SandboxPlace, SandboxResult, SandboxSpec

FACTS_SECONDS = 60.0
_REMOVERS = 2


class DockerBackend:
    """Sandboxes on the engine at `host`, with its default runtime or the named one.

    `owner` names the ledger that the sandboxes belong to: an engine may serve several, whose steps have the same
    numbers, and each finds and destroys its own only. `grace_seconds` is how long after the deadline we end what the
    fuse inside should have ended.
    """

    def __init__(
        self,
        host: str,
        registry: Registry,
        *,
        owner: str = "",
        runtime: str | None = None,
        grace_seconds: float = 2.0,
    ) -> None:
        self._connections = Connections(host)
        self._owner = owner
        self._registry, self._runtime, self._grace_seconds = registry, runtime, grace_seconds
        self._facts: EngineFacts | None = None
        self._facts_until = 0.0
        self._images: dict[str, LocalImage] = {}
        self._root: Path | None = None
        self._removals: set[Future[None]] = set()
        self._removers = ThreadPoolExecutor(_REMOVERS, thread_name_prefix="remove-sandbox")

    def run(self, spec: SandboxSpec, files: Iterable[bytes], cancel: threading.Event | None = None) -> SandboxResult:
        """See `Backend.run`."""
        runtime = self.facts().runtime
        require_network(spec, runtime, transparent=runtime in TRANSPARENT, is_here=self._is_local())
        return self._new(spec).result(spec, files, cancel)

    def arm(self, place: SandboxPlace) -> Run:
        """See `Backend.arm`."""
        return self._new(place)

    def _new(self, place: SandboxPlace) -> Run:
        facts, image = self.facts(), self._image(place)
        engine = Engine(
            connections=self._connections,
            registry=self._registry,
            facts=facts,
            grace_seconds=self._grace_seconds,
            local=self._is_local() and facts.runtime in TRANSPARENT,
            later=self._later,
        )
        return Run(engine, place, container(place, self._owner, image, facts, self._runtime))

    def settle(self) -> None:
        """See `Backend.settle`."""
        wait(set(self._removals))

    def _later(self, removal: Callable[[], None]) -> None:
        try:
            begun = self._removers.submit(removal)
        except RuntimeError:  # this backend is being closed
            removal()
        else:
            self._removals.add(begun)
            begun.add_done_callback(self._removals.discard)

    def has_image(self, digest: str) -> bool:
        """See `Backend.has_image`."""
        with self._connections.client() as client:
            return find_image(client, digest) is not None

    def load_image(self, layout: Path) -> str:
        """See `Backend.load_image`. Raises BadInput for a folder that is no layout."""
        image = read_layout(layout)
        with self._connections.client() as client:
            for line in client.load_image(engine_archive(image)):  # type: ignore[no-untyped-call]
                if "error" in line:
                    if says_full(line["error"]):
                        raise DiskFull(f"the engine could not load {image.name}: {line['error']}")
                    raise ImageUnavailable(f"the engine could not load {image.name}: {line['error']}")
            loaded = find_image(client, image.manifest_digest)
        if loaded is None or loaded.id not in (image.config_digest, image.manifest_digest):
            raise ImageUnavailable(f"the engine made something else of {image.name} than was loaded")
        return loaded.id

    def save_image(self, name: str) -> Iterator[bytes]:
        """What `docker save` writes of the image of this name or id, in pieces. Raises ImageUnavailable."""
        with self._connections.client() as client:
            yield from client.get_image(name)

    def stored_images(self) -> list[StoredImage]:
        """See `Backend.stored_images`. When an image was loaded is all that an engine knows of its use."""
        with self._connections.client() as client:
            return list(loaded_images(client))

    def remove_image(self, digest: str) -> bool:
        """See `Backend.remove_image`. The engine itself refuses while a container has it."""
        with self._connections.client() as client:
            return remove_image(client, digest)

    def folders(self) -> tuple[Path, ...]:
        """See `Backend.folders`."""
        if not self._is_local():
            return ()
        if self._root is None:
            with self._connections.client() as client:
                self._root = Path(client.info()["DockerRootDir"])
        return (self._root,)

    def find(self, *, step_id: int | None = None, name: str | None = None) -> list[FoundSandbox]:
        """See `Backend.find`."""
        labels = [f"{LABEL_OWNER}={self._owner}", LABEL_STEP if step_id is None else f"{LABEL_STEP}={step_id}"]
        if name is not None:
            labels.append(f"{LABEL_SANDBOX}={name}")
        with self._connections.client() as client:
            return [_found(row) for row in client.containers(all=True, filters={"label": labels})]

    def destroy(self, found: FoundSandbox) -> Evidence:
        """See `Backend.destroy`."""
        with self._connections.client() as client:
            pid = _pid(client, found.key)
            remove(client, found.key)
            gone = is_gone(client, found.key)
        seen = {"inspected": "not found" if gone else "still there"}
        if pid:
            seen["process"] = "still there" if self._is_local() and is_of(pid, found.key) else "not found"
        return Evidence(
            sandbox=found.name,
            key=found.key,
            found=found.state,
            killed=bool(pid),
            gone=gone and seen.get("process") != "still there",
            seen=seen,
        )

    def inspect(self, spec: SandboxSpec, found: FoundSandbox) -> Inspection:
        """See `Backend.inspect`."""
        asked = container(spec, self._owner, self._image(spec), self.facts(), self._runtime)
        with self._connections.client() as client:
            record = client.inspect_container(found.key)
        pid = int(record["State"]["Pid"])
        ours = self._is_local() and self.facts().runtime in TRANSPARENT and is_of(pid, found.key)
        return Inspection(pid=pid if ours else None, points=tuple(points(asked, record, self.facts().runtime)))

    def facts(self) -> EngineFacts:
        """See `Backend.facts`; asked again now and then, since an engine may be replaced while we run."""
        if self._facts is None or time.monotonic() > self._facts_until:
            self._facts = self._connections.facts(self._runtime)
            self._facts_until = time.monotonic() + FACTS_SECONDS
        return self._facts

    def versions(self) -> dict[str, str]:
        """See `Backend.versions`."""
        return self._connections.versions(self._runtime)

    def close(self) -> None:
        """See `Backend.close`."""
        self._removers.shutdown()
        self._connections.close()

    def _is_local(self) -> bool:
        return self._connections.host.startswith("unix://")

    def _image(self, spec: SandboxPlace) -> LocalImage:
        if (known := self._images.get(spec.image)) is not None:
            return known
        with self._connections.client() as client:
            found = find_image(client, spec.image)
        if found is None:
            raise ImageUnavailable(f"the engine does not have the image {spec.image}")
        if spec.image_config is not None and found.id not in (spec.image_config, spec.image):
            raise ImageUnavailable(f"the engine has something else under {spec.image}")
        ours = self.facts().architecture
        if found.architecture and ARCHITECTURES.get(found.architecture, found.architecture) != ours:
            raise ImageUnavailable(f"the image {spec.image} is for {found.architecture}, and the engine runs on {ours}")
        self._images[spec.image] = found
        return found


def _found(row: dict[str, Any]) -> FoundSandbox:
    labels = row["Labels"]
    return FoundSandbox(
        key=row["Id"],
        name=labels.get(LABEL_SANDBOX, ""),
        job_id=int(labels.get(LABEL_JOB, 0)),
        step_id=int(labels[LABEL_STEP]),
        fence=int(labels.get(LABEL_FENCE, 0)),
        state=row["State"],
    )


def _pid(client: APIClient, container: str) -> int:
    """The process id of a container's first process, 0 when it does not run."""
    try:
        return int(client.inspect_container(container)["State"]["Pid"])
    except NotFound:
        return 0
