"""A supervised yard: services of a test's own under a home of its own, ended with the test."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from patchyard.local.control import end_stack, follow, supervisor_of
from patchyard.local.home import Home, open_home
from patchyard.local.plan import Service, ServiceStatus
from patchyard.local.processes import SUPERVISOR, StackProcess, stack_processes
from patchyard.local.standby import STANDBY


def eventually(holds: Callable[[], object], timeout_seconds: float = 60) -> None:
    """Returns when `holds` does; fails when it does not in time."""
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.03)


@dataclass
class Yard:
    """A home with a supervisor and the services that a test gives it."""

    home: Home
    services: dict[str, Service] = field(default_factory=dict)

    def service(self, name: str, script: str, *, stage: int = 2, stop_seconds: float = 5, **env: str) -> Service:
        """A service that runs a Python script."""
        path = self.home.path / f"{name}.py"
        path.write_text(script)
        return Service(
            name=name,
            argv=(sys.executable, "-u", str(path)),
            environment=env,
            working_folder=str(self.home.path),
            log=str(self.home.log(name)),
            stage=stage,
            stop_signal=signal.SIGTERM,
            stop_seconds=stop_seconds,
        )

    def follow(self, *services: Service) -> None:
        follow(self.home, services)

    def status(self, name: str) -> ServiceStatus:
        status = self.home.run.read_status()
        assert status is not None
        return status.services[name]

    def pid(self, name: str) -> int:
        """The pid of the service, as soon as it runs."""
        eventually(lambda: self.status(name).pid)
        pid = self.status(name).pid
        assert pid is not None
        return pid

    def living(self) -> list[StackProcess]:
        return stack_processes(self.home.path)

    def supervisor(self) -> int:
        found = supervisor_of(self.home)
        assert found is not None
        return found.pid

    def supervised_by(self) -> int:
        """The pid of the supervisor that wrote the status."""
        status = self.home.run.read_status()
        assert status is not None
        return status.supervisor_pid

    def kill_supervision(self) -> None:
        """Kill the supervisor and its standby, so that nothing looks after the services."""
        os.kill(self.supervisor(), signal.SIGSTOP)
        for name in (STANDBY, SUPERVISOR):
            for process in self.living():
                if process.service == name:
                    os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not {STANDBY, SUPERVISOR} & {process.service for process in self.living()})

    def log(self, name: str) -> str:
        path = self.home.log(name)
        return path.read_text() if path.exists() else ""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    home = open_home(tmp_path / "home", create=True)
    assert home is not None
    yield Yard(home)
    assert end_stack(home) == []
