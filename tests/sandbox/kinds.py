"""The backends that every test of a sandbox runs on, and how each is reached, from this process or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runners.sandbox.backend import Backend
from runners.sandbox.docker import DockerBackend
from runners.sandbox.oci import OciBackend

KINDS = ("docker", "oci-crun", "oci-runc", "docker-crun", "docker-runsc", "oci-runsc")
WHOLE = ("docker", "oci-crun")
"""The kinds that every test is run on; on the others, those that are about the runtime. `make sandbox-matrix` runs
every test on every kind."""
OWN_KERNEL = ("docker-runsc", "oci-runsc")
"""Those whose sandboxes see a kernel of their own, gVisor's, that stands between them and this machine's."""


def connect(kind: str, where: str, **options: Any) -> Backend:
    """A backend of this kind: `where` is an engine's address, or a PATCHYARD_HOME."""
    backend, _, runtime = kind.partition("-")
    if backend == "docker":
        return DockerBackend(where, runtime=runtime or None, **options)
    return OciBackend(Path(where), runtime=runtime, **options)
