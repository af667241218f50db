"""The clock outside of a sandbox: when it has to be ended, and why, whatever the fuse inside does."""

from __future__ import annotations

import threading
import time
from typing import Literal

from policy.ceilings import Limits
from runners.sandbox.frames import Report
from runners.sandbox.output import BoundedOutput
from runners.sandbox.wrapper import STAGE_SECONDS

Stage = Literal["unpacking", "running", "exporting"]
Why = Literal["cancelled", "timed_out", "output_flooded", "stalled"]
LOOK_SECONDS = 0.05
"""How often, at least, a backend asks for a verdict."""
DRAIN_SECONDS = 10.0
"""How long what a killed sandbox had still to say is read."""


class Overseer:
    """Decides whether a sandbox has to be ended, and why. `grace_seconds` is what the fuse inside is given to act
    first: it acts at the deadline and can still report."""

    def __init__(
        self, limits: Limits, deadline_seconds: float, cancel: threading.Event | None, grace_seconds: float
    ) -> None:
        self._limits, self._deadline_seconds = limits, deadline_seconds
        self._cancel, self._grace = cancel, grace_seconds
        self._stage_since = time.monotonic()
        self._stage: Stage = "unpacking"
        self._took: dict[Stage, float] = {}

    def verdict(self, report: Report, output: BoundedOutput) -> Why | None:
        """Why the sandbox has to be ended now, or None."""
        now = time.monotonic()
        stage: Stage = "exporting" if report.ended else "running" if report.started else "unpacking"
        if stage != self._stage:
            self._took[self._stage] = now - self._stage_since
            self._stage, self._stage_since = stage, now
        if self._cancel is not None and self._cancel.is_set() and stage != "exporting":
            return "cancelled"
        if output.total_bytes > self._limits.output_cap_bytes:
            return "output_flooded"
        in_stage = now - self._stage_since
        if stage == "running":
            return "timed_out" if in_stage > self._deadline_seconds + self._grace else None
        return "stalled" if in_stage > STAGE_SECONDS + max(0.0, self._grace) else None

    def took_ms(self) -> dict[str, int]:
        """How long each stage took by our clock, as fields of Timings; the present one ends now."""
        took = self._took | {self._stage: time.monotonic() - self._stage_since}
        names: dict[Stage, str] = {"unpacking": "unpack_ms", "running": "run_ms", "exporting": "export_ms"}
        return {names[stage]: round(1000 * seconds) for stage, seconds in took.items()}
