"""What one run of one system came to, in the same figures for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Run:
    """`jobs` jobs of `tool_calls` tool calls each, done by `slots` sandboxes at once in `seconds` of wall clock."""

    system: str
    round: str
    jobs: int
    succeeded: int
    seconds: float
    slots: int
    tool_calls: int
    busy_cpu_seconds: float = 0.0
    """Processor time of the whole machine meanwhile: the system's, if the machine has nothing else to do."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def jobs_per_minute(self) -> float:
        return self.jobs / self.seconds * 60

    @property
    def slot_ms_per_tool_call(self) -> float:
        """Slot time over tool calls: what a tool call costs with everything around it (start, removal, proof)."""
        return self.seconds * 1000 * self.slots / (self.jobs * self.tool_calls)

    def plain(self) -> dict[str, Any]:
        """The run as JSON-ready values."""
        derived = {
            "jobs_per_minute": round(self.jobs_per_minute, 1),
            "slot_ms_per_tool_call": round(self.slot_ms_per_tool_call, 1),
            "cpu_ms_per_job": round(self.busy_cpu_seconds * 1000 / self.jobs, 1),
        }
        rounded = {name: round(getattr(self, name), 3) for name in ("seconds", "busy_cpu_seconds")}
        return {**asdict(self), **rounded, **derived}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value that `percent` % of `values` do not exceed, in one decimal, or None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)], 1)
