"""What tests put into a sandbox, and how they ask it what it sees."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

from runners.sandbox.backend import Backend
from runners.sandbox.spec import SandboxResult, SandboxSpec

STEP = 71


def tar_of(files: dict[str, bytes] | None = None) -> list[bytes]:
    """A tar of these files, as one piece."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in (files or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return [packed.getvalue()]


def spec_of(image: str, *command: str, **fields: Any) -> SandboxSpec:
    """A spec with the fields that do not matter to a test filled in."""
    plain = {"deadline_seconds": 20.0, "job_id": 70, "step_id": STEP, "fence": 1}
    return SandboxSpec(image=image, command=command, **(plain | fields))


def sh(
    backend: Backend, image: str, script: str, files: dict[str, bytes] | None = None, **fields: Any
) -> SandboxResult:
    """Run a shell script."""
    return backend.run(spec_of(image, "sh", "-c", script, **fields), tar_of(files))


def python(backend: Backend, image: str, code: str, **fields: Any) -> SandboxResult:
    """Run Python code."""
    return backend.run(spec_of(image, "python3", "-c", code, **fields), tar_of())


def seen(backend: Backend, image: str, code: str) -> Any:
    """What Python code leaves in the variable `seen`, brought out as JSON."""
    result = python(backend, image, f"seen = None\n{code}\nimport json; print(json.dumps(seen))")
    assert result.exit_code == 0, result.output.decode()
    return json.loads(result.output)
