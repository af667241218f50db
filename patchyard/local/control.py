"""Starts, tells and ends the supervisor of a stack, and ends whatever lives without one.

The plan is the only way to tell a supervisor anything: it is written, the supervisor is woken, and its status says when
it has followed. That works the same for one that was just started in place of a killed one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ledger.errors import Unfit
from patchyard.local.home import Home
from patchyard.local.logs import last_lines
from patchyard.local.plan import Plan, Service
from patchyard.local.processes import (
    SUPERVISOR,
    Ending,
    StackProcess,
    by_service,
    end_all,
    is_alive,
    stack_processes,
    tags,
)
from patchyard.local.services import base_environment
from patchyard.local.standby import STANDBY

_FOLLOW_SECONDS = 20.0
_TAKEOVER_SECONDS = 5.0
_MOST_FAILURES = 3


def supervisor_of(home: Home) -> StackProcess | None:
    """The supervisor of the stack in `home`, if it lives. A standby that stands alone is given time to take over."""
    deadline = time.monotonic() + _TAKEOVER_SECONDS
    while True:
        living = stack_processes(home.path)
        supervisor = by_service(living, SUPERVISOR)
        if supervisor or by_service(living, STANDBY) is None or time.monotonic() > deadline:
            return supervisor
        time.sleep(0.03)


def follow(home: Home, wanted: tuple[Service, ...]) -> None:
    """Write the plan and have the supervisor follow it; it is started if there is none."""
    before = home.run.read_plan()
    plan = Plan((before.generation if before else 0) + 1, wanted)
    home.run.write_plan(plan)
    supervisor = supervisor_of(home)
    if supervisor is None:
        pid = _start_supervisor(home)
    else:
        pid = supervisor.pid
        os.kill(pid, signal.SIGHUP)
    longest_stop_seconds = max((service.stop_seconds for service in wanted), default=0.0)
    deadline = time.monotonic() + _FOLLOW_SECONDS + 2 * longest_stop_seconds
    while True:
        status = home.run.read_status()
        if status and (status.supervisor_pid, status.generation) == (pid, plan.generation):
            return
        if not is_alive(pid) or time.monotonic() > deadline:
            lines = last_lines(home.log(SUPERVISOR), 1)
            what = "the supervisor " + ("does not answer" if is_alive(pid) else "ended")
            raise Unfit(what + (f": {lines[0]}" if lines else ""), remedy=f"see {home.log(SUPERVISOR)}")
        time.sleep(0.03)


def _start_supervisor(home: Home) -> int:
    with home.log(SUPERVISOR).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "patchyard.local.supervisor", str(home.path)],
            env=base_environment() | tags(home.path, SUPERVISOR),
            cwd=home.run.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # It is to outlive us; without this Python would warn that it still runs when the object goes.
    process.returncode = 0
    return process.pid


def is_trying(home: Home, name: str) -> bool:
    """Whether the service runs, or will be tried again without having failed often."""
    status = home.run.read_status()
    service = status.services.get(name) if status else None
    if service is None:
        return False
    return service.failures < _MOST_FAILURES


def wait_for_services(home: Home, timeout_seconds: float = 60) -> None:
    """Until each service has said that it is ready; `Unfit` with its last line when one fails again and again."""
    plan = home.run.read_plan()
    deadline = time.monotonic() + timeout_seconds
    for service in plan.services if plan else ():
        while not _is_ready(home, service):
            overdue = time.monotonic() > deadline
            if overdue or not is_trying(home, service.name):
                lines = last_lines(Path(service.log), 1)
                what = f"{service.name} " + ("is not ready yet" if overdue else "ends again and again")
                raise Unfit(what + (f": {lines[0]}" if lines else ""), remedy=f"see {service.log}")
            time.sleep(0.05)


def _is_ready(home: Home, service: Service) -> bool:
    status = home.run.read_status()
    known = status.services.get(service.name) if status else None
    if known is None or known.pid is None or not is_alive(known.pid):
        return False
    return service.ready_file is None or Path(service.ready_file).exists()


def end_stack(home: Home) -> list[StackProcess]:
    """End every process of the stack, known to a supervisor or not; returns those that live on.

    The supervisor ends first, since it would restart the others; then workers before servers.
    """
    plan = home.run.read_plan()
    planned = {service.name: service for service in plan.services} if plan else {}
    home.run.plan.unlink(missing_ok=True)  # where there is no plan, no standby takes over
    if supervisor := supervisor_of(home):
        seconds = {service.stage: service.stop_seconds for service in planned.values()}
        end_all([Ending(supervisor.pid, signal.SIGTERM, sum(seconds.values()) + 15)])
    for stage in sorted({service.stage for service in planned.values()}, reverse=True):
        endings = []
        for process in stack_processes(home.path):
            service = planned.get(process.service)
            if service and service.stage == stage and process.leads_as(service.argv):
                endings.append(Ending(process.pid, service.stop_signal, service.stop_seconds))
        end_all(endings)
    data = [home.postgres_data]
    end_all([Ending(process.pid, signal.SIGTERM, 5) for process in stack_processes(home.path, data)])
    return stack_processes(home.path, data)


def forget(home: Home) -> None:
    """Remove the files that only a running stack needs."""
    for file in (home.run.plan, home.run.status, home.run.supervisor_lock, *home.run.folder.glob("*.ready")):
        with suppress(FileNotFoundError):
            file.unlink()
