"""What is to run: the plan that `up` writes and the supervisor follows, and the status that the supervisor writes back.

Both are small files under PATCHYARD_HOME/run, replaced by rename, so that whoever reads one sees a whole one. They are
what makes the supervisor replaceable: a new one reads them and goes on where a killed one stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Service:
    """One process that is to run, always. Services of a higher `stage` are stopped before those of a lower one."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    working_folder: str
    log: str
    stage: int
    stop_signal: int
    stop_seconds: float
    uid: int | None = None
    gid: int | None = None
    ready_file: str | None = None

    def fingerprint(self) -> str:
        """Changes when a running process would have to be replaced to be what the plan says."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """The services, and a number that grows with every plan written."""

    generation: int
    services: tuple[Service, ...] = ()


@dataclass(frozen=True)
class ServiceStatus:
    """A service as the supervisor sees it. Times are seconds since the epoch; `failures` are quick exits in a row."""

    pid: int | None
    fingerprint: str
    restarts: int
    failures: int
    started_at: float
    last_exit: str


@dataclass(frozen=True)
class Status:
    """All services of the plan of `generation`, as the supervisor `supervisor_pid` sees them."""

    supervisor_pid: int
    generation: int
    services: dict[str, ServiceStatus] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFolder:
    """The folder of the files that only a running stack needs."""

    folder: Path

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.folder / "supervisor.lock"

    def read_plan(self) -> Plan | None:
        """The plan, or None when there is none. A plan that cannot be read (written by another version) is none."""
        try:
            raw = json.loads(self.plan.read_text())
            services = tuple(Service(**{**item, "argv": tuple(item["argv"])}) for item in raw["services"])
            return Plan(raw["generation"], services)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None

    def write_plan(self, plan: Plan) -> None:
        """The plan holds passwords: mode 0600."""
        write_private(self.plan, json.dumps(asdict(plan), indent=1))

    def read_status(self) -> Status | None:
        """The status, or None when there is none that can be read."""
        try:
            raw = json.loads(self.status.read_text())
            services = {name: ServiceStatus(**item) for name, item in raw["services"].items()}
            return Status(raw["supervisor_pid"], raw["generation"], services)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None

    def write_status(self, status: Status) -> None:
        write_private(self.status, json.dumps(asdict(status), indent=1))


def write_private(path: Path, text: str) -> None:
    """Replace `path` by `text` in one rename, with mode 0600."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)
