"""How much of a machine one sandbox may take: the default, and the ceiling that no job gets past.

A job's wishes are checked when it is submitted, and become the limits of every sandbox that it is given. The workspace
and /tmp live in memory, so their sizes count against the sandbox's memory: together they may fill half of it, so that
a full disk is seen as one and not as an OOM kill.
"""

from __future__ import annotations

from pydantic import Field

from ledger.errors import BadInput
from ledger.records.base import Record
from ledger.records.job import SandboxLimits

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Limits(Record):
    """The caps of one sandbox. `output_bytes` are kept of its output (the first and the last half of them); a command
    that writes more than `output_cap_bytes` is killed."""

    memory_bytes: int = Field(default=1 * GIB, ge=32 * MIB, le=64 * GIB)
    cpus: float = Field(default=1.0, ge=0.05, le=64)
    pids: int = Field(default=256, ge=16, le=16_384)
    open_files: int = Field(default=1_024, ge=64, le=65_536)
    file_size_bytes: int = Field(default=256 * MIB, ge=1 * MIB, le=16 * GIB)
    workspace_bytes: int = Field(default=256 * MIB, ge=1 * MIB, le=16 * GIB)
    tmp_bytes: int = Field(default=256 * MIB, ge=1 * MIB, le=16 * GIB)
    output_bytes: int = Field(default=1 * MIB, ge=1 * KIB, le=16 * MIB)
    output_cap_bytes: int = Field(default=128 * MIB, ge=1 * MIB, le=1 * GIB)


DEFAULT = Limits()


def limits_of(wished: SandboxLimits, *, where: str = "limits") -> Limits:
    """The limits of a job's sandboxes. Raises BadInput, naming the field after `where`, for what cannot be granted."""
    memory = DEFAULT.memory_bytes if wished.memory_mb is None else wished.memory_mb * MIB
    half_of_the_disks = memory // 4
    workspace = min(DEFAULT.workspace_bytes, half_of_the_disks)
    tmp = min(DEFAULT.tmp_bytes, half_of_the_disks)
    granted = {
        "memory_mb": ("memory_bytes", memory),
        "cpus": ("cpus", DEFAULT.cpus if wished.cpus is None else wished.cpus),
        "pids": ("pids", DEFAULT.pids if wished.pids is None else wished.pids),
        "workspace_mb": ("workspace_bytes", workspace if wished.workspace_mb is None else wished.workspace_mb * MIB),
        "tmp_mb": ("tmp_bytes", tmp if wished.tmp_mb is None else wished.tmp_mb * MIB),
        "output_kb": ("output_bytes", DEFAULT.output_bytes if wished.output_kb is None else wished.output_kb * KIB),
    }
    for field, (name, value) in granted.items():
        _check(f"{where}.{field}", name, value, field)
    limits = Limits.model_validate(dict(granted.values()))
    if 2 * (limits.workspace_bytes + limits.tmp_bytes) > limits.memory_bytes:
        raise BadInput(
            "workspace_mb and tmp_mb together are more than half of memory_mb, and both live in memory",
            where=where,
            remedy="raise memory_mb or lower one of them",
        )
    return limits


def _check(where: str, name: str, value: float, field: str) -> None:
    unit = MIB if field.endswith("_mb") else KIB if field.endswith("_kb") else 1
    bounds = {type(item).__name__: item for item in Limits.model_fields[name].metadata}
    least, most = bounds["Ge"].ge / unit, bounds["Le"].le / unit
    if not least <= value / unit <= most:
        raise BadInput(f"{value / unit:g} is out of bounds", where=where, remedy=f"give {least:g} to {most:g}")
