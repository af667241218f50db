"""The OCI backend: one container a command, run by crun, runc or runsc on a bundle of ours, and no engine."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from runners.filelock import Busy, hold
from runners.sandbox import wrapper
from runners.sandbox.backend import (
    Evidence,
    FoundSandbox,
    ImageUnavailable,
    Inspection,
    Registry,
    SandboxBroken,
    StoredImage,
)
from runners.sandbox.egress.entrance import require_network
from runners.sandbox.oci import removal
from runners.sandbox.oci.bundle import Ground, config
from runners.sandbox.oci.cgroups import counts_swap, needed_hierarchies, other_hierarchies, read_cgroups
from runners.sandbox.oci.images import Images
from runners.sandbox.oci.inspect import points
from runners.sandbox.oci.launcher import Launcher
from runners.sandbox.oci.places import Labels, Places, check_owner
from runners.sandbox.oci.run import Host, Run
from runners.sandbox.oci.runtime import find_runtime, has_own_kernel
from runners.sandbox.oci.selftest import SelfTest, self_test
from runners.sandbox.spec import EngineFacts, SandboxPlace, SandboxResult, SandboxSpec

_BUSY_SECONDS = 10.0


class OciBackend:
    """Sandboxes in the folder `oci` of PATCHYARD_HOME, by the named runtime or the fastest that is here.

    `owner` names the ledger that the sandboxes belong to, as with other backends; `grace_seconds` is how long after
    the deadline we end what the fuse inside should have ended. The sandboxes of a process die with it.

    Raises Unfit where there is no runtime, BadInput for one that is asked for and not here.
    """

    def __init__(
        self,
        home: Path,
        registry: Registry,
        *,
        owner: str = "",
        runtime: str | None = None,
        grace_seconds: float = 2.0,
    ) -> None:
        self._owner = check_owner(owner)
        self._places = Places.of(home)
        self._places.prepare()
        self._used = ExitStack()
        self._used.enter_context(hold(self._places.users, shared=True, timeout_seconds=_BUSY_SECONDS))
        self._images = Images(self._places.images)
        self._cgroups = read_cgroups(self._places.cgroup)
        found = find_runtime(runtime)
        hierarchies = needed_hierarchies(all_of_them=found.wants_all_cgroups)
        self._limits_swap = counts_swap()
        # A kernel of its own shows a sandbox cgroups of its own.
        self._other_cgroups = other_hierarchies(hierarchies) if found.is_transparent else None
        self._host = Host(
            places=self._places,
            cgroups=self._cgroups,
            runtime=found,
            launcher=Launcher(self._images.folder, self._places.scratch, hierarchies, found.sealable),
            registry=registry,
            owner=self._owner,
            grace_seconds=grace_seconds,
            facts=EngineFacts(
                backend="oci",
                host=str(self._places.folder),
                version=found.version,
                runtime=found.name,
                runtime_version=found.version,
                kernel=platform.release(),
                architecture=platform.machine(),
                cgroup_version=self._cgroups.version,
                storage="folder",
            ),
        )

    def run(self, spec: SandboxSpec, files: Iterable[bytes], cancel: threading.Event | None = None) -> SandboxResult:
        """See `Backend.run`."""
        require_network(spec, self._host.runtime.name, transparent=self._host.runtime.is_transparent)
        with self._images.in_use(spec.image):
            return Run(self._host, spec, self.ground(spec)).result(spec, files, cancel)

    def arm(self, place: SandboxPlace) -> Run:
        """See `Backend.arm`."""
        with ExitStack() as held:
            held.enter_context(self._images.in_use(place.image))
            run = Run(self._host, place, self.ground(place))
            run.hold(held.pop_all())
            return run

    def settle(self) -> None:
        """See `Backend.settle`. Nothing is left for later."""

    def has_image(self, digest: str) -> bool:
        """See `Backend.has_image`."""
        return self._images.find(digest) is not None

    def load_image(self, layout: Path) -> str:
        """See `Backend.load_image`. Raises BadInput for a folder that is no layout."""
        return self._images.load(layout).manifest

    def stored_images(self) -> list[StoredImage]:
        """See `Backend.stored_images`."""
        return self._images.stored()

    def remove_image(self, digest: str) -> bool:
        """See `Backend.remove_image`."""
        return self._images.remove(digest, self._is_some_sandboxes)

    def _is_some_sandboxes(self, place: Path) -> bool:
        """Whether a sandbox's bundle names this image, whoever made it and whether or not it still runs."""
        for labels in self._places.all():
            with suppress(FileNotFoundError):
                if str(place) in (self._places.sandbox(labels) / "config.json").read_text():
                    return True
        return False

    def folders(self) -> tuple[Path, ...]:
        """See `Backend.folders`."""
        return self._images.folder, self._places.folder

    def find(self, *, step_id: int | None = None, name: str | None = None) -> list[FoundSandbox]:
        """See `Backend.find`."""
        return [
            FoundSandbox(
                key=labels.key,
                name=labels.name,
                job_id=labels.job_id,
                step_id=labels.step_id,
                fence=labels.fence,
                state=self._state(labels),
            )
            for labels in self._places.all()
            if labels.owner == self._owner and step_id in (None, labels.step_id) and name in (None, labels.name)
        ]

    def destroy(self, found: FoundSandbox) -> Evidence:
        """See `Backend.destroy`."""
        labels = Labels.read(found.key)
        if labels is None or labels.owner != self._owner:
            raise SandboxBroken(f"{found.key!r} is no sandbox of this backend")
        killed = removal.stop_runtimes(self._places, labels) + self._cgroups.kill(labels.name)
        remains = removal.remove(self._places, self._cgroups, labels, self._host.launcher.pid)
        return Evidence(
            sandbox=found.name,
            key=found.key,
            found=found.state,
            killed=killed > 0,
            gone=remains.gone,
            seen=remains.plain(),
        )

    def inspect(self, spec: SandboxSpec, found: FoundSandbox) -> Inspection:
        """See `Backend.inspect`."""
        labels = Labels.read(found.key)
        if labels is None:
            raise SandboxBroken(f"{found.key!r} is no sandbox of this backend")
        folder, ground = self._places.sandbox(labels), self.ground(spec)
        arguments = wrapper.argv(ground.architecture, spec.armed_seconds, proxied=spec.network is not None)
        asked = config(ground, spec.limits, arguments, self._cgroups.path(labels.name))
        try:
            seen = points(
                asked,
                (folder / "config.json").read_text(),
                runtime=self._host.runtime.name,
                bounds=self._cgroups.bounds(labels.name),
            )
            pid = int((folder / "pid").read_text())
            return Inspection(pid=pid if self._host.runtime.is_transparent else None, points=tuple(seen))
        except (OSError, ValueError, KeyError) as broken:
            raise SandboxBroken(f"there is no record of {found.name}: {broken}") from broken

    def self_test(self) -> SelfTest:
        """Run one sandbox that needs no image, and look at it. Raises Unfit with what is wrong here."""
        return self_test(self._host, limits_swap=self._limits_swap, other_cgroups=self._other_cgroups)

    @property
    def launcher_pid(self) -> int | None:
        """The process that starts runtimes, once there is one."""
        return self._host.launcher.pid

    def facts(self) -> EngineFacts:
        """See `Backend.facts`."""
        return self._host.facts

    def versions(self) -> dict[str, str]:
        """See `Backend.versions`."""
        return {self._host.runtime.kind: self._host.runtime.version}

    def close(self) -> None:
        """See `Backend.close`."""
        self._host.launcher.close()
        self._used.close()
        # Who starts sandboxes here holds this too. The last one out takes the cgroup away that was around all of them.
        with suppress(Busy), hold(self._places.users):
            self._cgroups.remove_parent()

    def _state(self, labels: Labels) -> str:
        if self._cgroups.processes(labels.name):
            return "running"
        return "exited" if (self._places.sandbox(labels) / "pid").exists() else "created"

    def ground(self, spec: SandboxPlace) -> Ground:
        """What a sandbox in this place stands on. Raises ImageUnavailable."""
        image = self._images.find(spec.image)
        if image is None:
            raise ImageUnavailable(f"the image {spec.image} is not here, or is not any more what it was: load it")
        if spec.image_config not in (None, image.config, image.manifest):
            raise ImageUnavailable(f"there is something else under {spec.image}")
        if image.lacks:
            raise ImageUnavailable(f"the image cannot serve as a sandbox, it needs {', '.join(image.lacks)}")
        root, architecture = str(self._images.root(image)), self._host.facts.architecture
        own_kernel = has_own_kernel(self._host.runtime.name)
        return Ground(root, architecture, self._limits_swap, self._other_cgroups, own_kernel=own_kernel)
