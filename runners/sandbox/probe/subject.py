"""What evidence is about: an image, a runtime, and a host as it is now.

A machine that was started anew, another engine, runtime or kernel, and other code of our own each ask for new evidence.
What cannot be told from here (the boot of a machine that is reached over a network) is covered by the time that
evidence lasts.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from images import seccomp
from ledger.records.probe import Subject
from runners.sandbox.spec import EngineFacts

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def subject_of(facts: EngineFacts, image: str) -> Subject:
    """What a probe of `image` on a backend with these facts is about."""
    return Subject(
        image=image,
        backend=facts.backend,
        runtime=facts.runtime,
        host={
            "address": facts.host,
            "boot": boot_id() if is_local(facts) else "another machine",
            "engine": facts.version,
            "runtime": facts.runtime_version,
            "kernel": facts.kernel,
            "architecture": facts.architecture,
            "cgroups": str(facts.cgroup_version),
            "storage": facts.storage,
            "code": _code(),
            "seccomp": seccomp.fingerprint(facts.architecture),
        },
    )


def is_local(facts: EngineFacts) -> bool:
    """Whether the sandboxes are on this machine."""
    return facts.host.startswith(("unix://", "/"))


def boot_id() -> str:
    """What tells this boot of this machine from all others."""
    return _BOOT_ID.read_text().strip()


@cache
def _code() -> str:
    """A fingerprint of the code that makes sandboxes and probes them."""
    digest = hashlib.sha256()
    _add(digest, resources.files("runners.sandbox"))
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, place: Traversable) -> None:
    for one in sorted(place.iterdir(), key=lambda found: found.name):
        if one.is_dir() and one.name != "__pycache__":
            _add(digest, one)
        elif one.name.endswith(".py"):
            digest.update(one.name.encode() + b"\0" + one.read_bytes())
