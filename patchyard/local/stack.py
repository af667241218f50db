"""Starts and stops the local stack, and says what of it is there.

`ensure_up` may be called at any time, by several processes at once and after any death: one at a time, each starts what
is missing and leaves alone what runs. `stop` ends every process that a stack ever started, whether or not a supervisor
still knows of it, and reports what it could not end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.errors import Unfit
from patchyard.local import servers as embedded
from patchyard.local.home import Home, only_one, open_home
from patchyard.local.logs import last_lines
from patchyard.local.plan import Plan, Service
from patchyard.local.processes import SUPERVISOR, StackProcess, end, is_alive, stack_processes, tags
from patchyard.local.reach import require_broker, require_ledger
from patchyard.local.services import base_environment, service_names, services
from patchyard.settings import Settings

Say = Callable[[str], None]
_SUPERVISOR_SECONDS = 20.0
_SERVICES_SECONDS = 60.0
_MOST_FAILURES = 3


@dataclass(frozen=True)
class RunningStack:
    """Where a stack answers. `started_by_us`: this call started its supervisor, so its caller may stop it."""

    database_url: str
    broker_url: str
    docker_host: str | None
    started_by_us: bool


@dataclass(frozen=True)
class Leftovers:
    """What `stop` could not end; empty is the proof that nothing is left."""

    processes: tuple[StackProcess, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.other)


def ensure_up(
    settings: Settings, *, apply_changes: bool = False, wait: bool = True, say: Say = lambda _line: None
) -> RunningStack:
    """The stack of `settings`, started as far as it does not run yet.

    A stack that runs is left as it is, unless `apply_changes`: then services whose settings changed are restarted.
    With `wait`, returns when the services are ready and not merely started. Raises `Unfit` with one line when this
    machine or a server of the user's own is not fit; what this call started is stopped again then.
    """
    home = open_home(settings.home, create=True)
    assert home is not None  # noqa: S101 - create=True makes one or raises
    with only_one(home, say):
        if not apply_changes and (running := _already_up(home, settings)):
            return running
        started_by_us = _supervisor(home) is None
        try:
            running = _bring_up(home, settings, say)
            if wait:
                _wait_for_services(home)
        except BaseException:
            if started_by_us:
                _stop_everything(home)
            raise
        return replace(running, started_by_us=started_by_us)


def stop(settings: Settings, *, say: Say = lambda _line: None) -> Leftovers:
    """Stop the stack of `settings`, wherever its processes are found; returns what is left."""
    home = open_home(settings.home, create=False)
    if home is None:
        # Its folder was removed under it; its processes carry the name still.
        return _stop_everything(Home(settings.home.resolve()))
    home.run.folder.mkdir(mode=0o700, exist_ok=True)
    with only_one(home, say):
        return _stop_everything(home)


def planned_and_living(settings: Settings) -> tuple[Plan | None, Status | None, list[StackProcess]]:
    """What should run, what the supervisor says of it, and what the kernel says. Nothing is started or changed."""
    home = Home(settings.home.resolve())
    return home.run.read_plan(), home.run.read_status(), stack_processes(home.path)


def _supervisor(home: Home) -> StackProcess | None:
    living = stack_processes(home.path)
    return next((process for process in living if process.service == SUPERVISOR), None)


def _already_up(home: Home, settings: Settings) -> RunningStack | None:
    """The stack, if all that is planned runs and its services use the servers that `settings` mean."""
    plan, status, state = home.run.read_plan(), home.run.read_status(), embedded.read_state(home)
    supervisor = _supervisor(home)
    if plan is None or status is None or supervisor is None:
        return None
    if (status.supervisor_pid, status.generation) != (supervisor.pid, plan.generation):
        return None
    running = _where(settings, state)
    planned = {service.name: service for service in plan.services}
    if running is None or not planned.keys() >= set(service_names()):
        return None
    for name in service_names():
        expected = settings_of(settings, running).environment("database_url", "broker_url", "docker_host")
        known = planned[name].environment
        if any(known.get(key, value) != value for key, value in expected.items()):
            return None
    pids = [status.services[name].pid if name in status.services else None for name in planned]
    return running if all(pid is not None and is_alive(pid) for pid in pids) else None


def _where(settings: Settings, state: embedded.ServerState | None) -> RunningStack | None:
    database = settings.database_url or (embedded.database_url(state) if state else None)
    broker = settings.broker_url or (embedded.broker_url(state) if state else None)
    if database is None or broker is None:
        return None
    return RunningStack(database, broker, settings.docker_host, started_by_us=False)


def settings_of(settings: Settings, running: RunningStack) -> Settings:
    """The settings that a service of `running` gets: its URLs in place of what was not set."""
    return settings.model_copy(
        update={
            "database_url": running.database_url,
            "broker_url": running.broker_url,
            "docker_host": running.docker_host,
        }
    )


def _bring_up(home: Home, settings: Settings, say: Say) -> RunningStack:
    if settings.broker_url is not None:
        require_broker(settings.broker_url)
    if settings.database_url is not None:
        require_ledger(settings.database_url)
    before = home.run.read_plan()
    # Services that run already stay while the servers are looked after: they know how to wait for them.
    kept = tuple(service for service in before.services if service.name in service_names()) if before else ()

    def prepare() -> embedded.EmbeddedServers | None:
        living = {process.service for process in stack_processes(home.path)}
        return embedded.prepare_servers(
            home,
            own_database=settings.database_url is not None,
            own_broker=settings.broker_url is not None,
            living=living,
            say=say,
        )

    def launch(servers: embedded.EmbeddedServers | None) -> None:
        _follow(home, (servers.services() if servers else ()) + kept)

    servers = embedded.start_servers(prepare, launch, lambda name: _is_trying(home, name))
    running = _where(settings, embedded.read_state(home))
    assert running is not None  # noqa: S101 - the servers that were not given were just prepared
    if settings.database_url is None:
        require_ledger(running.database_url)
    of_servers = servers.services() if servers else ()
    _follow(home, of_servers + services(home, settings_of(settings, running)))
    return running


def _follow(home: Home, wanted: tuple[Service, ...]) -> None:
    """Write the plan and have the supervisor follow it; it is started if there is none."""
    before = home.run.read_plan()
    plan = Plan((before.generation if before else 0) + 1, wanted)
    home.run.write_plan(plan)
    supervisor = _supervisor(home)
    if supervisor is None:
        pid = _start_supervisor(home)
    else:
        pid = supervisor.pid
        os.kill(pid, 1)
    longest_stop_seconds = max((service.stop_seconds for service in wanted), default=0.0)
    deadline = time.monotonic() + _SUPERVISOR_SECONDS + 2 * longest_stop_seconds
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


def _is_trying(home: Home, name: str) -> bool:
    """Whether the service runs, or will be tried again without having failed often."""
    status = home.run.read_status()
    service = status.services.get(name) if status else None
    if service is None:
        return False
    return service.failures < _MOST_FAILURES


def _wait_for_services(home: Home) -> None:
    """Until each service has said that it is ready; `Unfit` with its last line when one fails again and again."""
    plan = home.run.read_plan()
    deadline = time.monotonic() + _SERVICES_SECONDS
    for service in plan.services if plan else ():
        while not _is_ready(home, service):
            overdue = time.monotonic() > deadline
            if overdue or not _is_trying(home, service.name):
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


def _stop_everything(home: Home) -> Leftovers:
    """The supervisor first, since it would restart the others; then whatever lives, workers before servers."""
    plan = home.run.read_plan()
    planned = {service.name: service for service in plan.services} if plan else {}
    stages = {service.stage: service.stop_seconds for service in planned.values()}
    data = home.postgres_data
    if supervisor := _supervisor(home):
        end(supervisor.pid, 15, sum(stages.values()) + 15)

    def stage_of(process: StackProcess) -> int:
        return planned[process.service].stage if process.service in planned else 99

    for process in sorted(stack_processes(home.path), key=stage_of, reverse=True):
        service = planned.get(process.service)
        if service and process.leads_as(service.argv):
            end(process.pid, service.stop_signal, service.stop_seconds)
    for process in stack_processes(home.path, [data]):
        end(process.pid, 15, 5)
    for file in (home.run.plan, home.run.status, home.run.supervisor_lock, *home.run.folder.glob("*.ready")):
        with suppress(FileNotFoundError):
            file.unlink()
    return Leftovers(tuple(stack_processes(home.path, [data])))
