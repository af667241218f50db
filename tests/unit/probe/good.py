"""Observations of a sandbox in which every promise was kept, taken from a real one, and ways to doctor them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from policy.ceilings import MIB, Limits
from runners.sandbox.probe.seen import Asked
from runners.sandbox.spec import EngineFacts, SandboxSpec

SEEN: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "seen.json").read_text())
IMAGE = "sha256:" + "a" * 64
FACTS = EngineFacts(
    backend="docker",
    host="unix:///var/run/docker.sock",
    version="28.0",
    runtime="runc",
    runtime_version="1.2",
    kernel="6.12",
    architecture="x86_64",
    cgroup_version=1,
    storage="overlay2",
)
LIMITS = Limits(
    memory_bytes=256 * MIB,
    pids=64,
    open_files=256,
    file_size_bytes=8 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=24 * MIB,
)
SPEC = SandboxSpec(image=IMAGE, command=("x",), limits=LIMITS, deadline_seconds=30, job_id=1, step_id=2, fence=3)
ASKED = Asked(SPEC, FACTS)

Doctoring = Callable[[dict[str, str]], None]


def tells(name: str, value: str) -> Doctoring:
    """Something else is observed under a name."""

    def doctor(told: dict[str, str]) -> None:
        told[name] = value

    return doctor


def replaces(name: str, old: str, new: str) -> Doctoring:
    """A part of what is observed is another; it must be there."""

    def doctor(told: dict[str, str]) -> None:
        assert old in told[name], (name, old)
        told[name] = told[name].replace(old, new)

    return doctor


def adds(name: str, line: str) -> Doctoring:
    """A line more."""

    def doctor(told: dict[str, str]) -> None:
        told[name] = f"{told[name].rstrip(chr(10))}\n{line}".lstrip("\n")

    return doctor


def forgets(*names: str) -> Doctoring:
    """Nothing is observed under these names, or under those that begin so."""

    def doctor(told: dict[str, str]) -> None:
        gone = [name for name in told if name.startswith(names)]
        assert gone, names
        for name in gone:
            del told[name]

    return doctor


def both(*doctorings: Doctoring) -> Doctoring:
    """One after the other."""

    def doctor(told: dict[str, str]) -> None:
        for one in doctorings:
            one(told)

    return doctor
