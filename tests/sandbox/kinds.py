"""The backends that every test of a sandbox runs on, and how each is reached, from this process or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runners.sandbox.backend import Backend
from runners.sandbox.docker import DockerBackend
from runners.sandbox.oci import OciBackend

KINDS = ("docker", "oci-crun", "oci-runc")


def connect(kind: str, where: str, **options: Any) -> Backend:
    """A backend of this kind: `where` is an engine's address, or a PATCHYARD_HOME."""
    backend, _, runtime = kind.partition("-")
    if backend == "docker":
        return DockerBackend(where, **options)
    return OciBackend(Path(where), runtime=runtime, **options)
