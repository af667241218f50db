"""Starts and stops the local stack, and says what of it is there.

`ensure_up` may be called at any time, by several processes at once and after any death: one at a time, each starts what
is missing and leaves alone what runs. `stop` ends every process that a stack ever started, whether or not a supervisor
still knows of it, and reports what it could not end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ledger.connect import Database
from patchyard.backends import Chosen, engine_address, is_free, remove_sandboxes, require_backend
from patchyard.local import servers as embedded
from patchyard.local.control import end_stack, follow, forget, is_trying, supervisor_of, wait_for_services
from patchyard.local.engine import answers
from patchyard.local.engine_choice import (
    ENGINE,
    choose_engine,
    fits,
    planned_backend,
    remove_remains,
    settle,
    wait_for_engine,
)
from patchyard.local.home import Home, only_one, open_home
from patchyard.local.plan import Plan, Status
from patchyard.local.processes import StackProcess, is_alive, stack_processes
from patchyard.local.reach import require_broker, require_ledger
from patchyard.local.services import service_names, services, worker_name
from patchyard.settings import PREFIX, Settings, masked

Say = Callable[[str], None]
_THE_STACK_ITSELF = {"home", "database_url", "broker_url", "docker_host", "sandbox_backend", "sandbox_runtime"}
_REACHED_BY = ("PATCHYARD_DATABASE_URL", "PATCHYARD_BROKER_URL", "PATCHYARD_DOCKER_HOST")


@dataclass(frozen=True)
class RunningStack:
    """Where a stack answers. `engine` is the address of what runs its sandboxes, None when that is not this machine's
    business. `started_by_us`: this call started its supervisor, so its caller may stop it."""

    database_url: str
    broker_url: str
    docker_host: str | None
    started_by_us: bool
    sandbox_backend: str
    sandbox_runtime: str | None
    engine: str | None


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
    require_backend(settings)
    home = open_home(settings.home, create=True)
    assert home is not None  # noqa: S101 - create=True makes one or raises
    with only_one(home, say):
        if not apply_changes and (running := _already_up(home, settings)):
            if untold := _untold(home, settings, running):
                say(f"the running stack goes on with {', '.join(untold)}; `patchyard up` tells it")
            return running
        started_by_us = supervisor_of(home) is None
        try:
            running = _bring_up(home, settings, say)
            if wait:
                wait_for_services(home)
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
        left = _stop_workers(home)
        everything = _stop_everything(home)
        return replace(everything, other=left + everything.other)


def planned_and_living(settings: Settings) -> tuple[Plan | None, Status | None, list[StackProcess]]:
    """What should run, what the supervisor says of it, and what the kernel says. Nothing is started or changed."""
    home = Home(settings.home.resolve())
    return home.run.read_plan(), home.run.read_status(), stack_processes(home.path)


def _already_up(home: Home, settings: Settings) -> RunningStack | None:
    """The stack, if all that is planned runs and its services use the servers that `settings` mean."""
    plan, status, state = home.run.read_plan(), home.run.read_status(), embedded.read_state(home)
    supervisor = supervisor_of(home)
    if plan is None or status is None or supervisor is None:
        return None
    if (status.supervisor_pid, status.generation) != (supervisor.pid, plan.generation):
        return None
    planned = {service.name: service for service in plan.services}
    if not planned.keys() >= set(service_names()):
        return None
    backend = planned_backend(plan)
    docker_host = planned[worker_name("sandbox")].environment.get("PATCHYARD_DOCKER_HOST")
    running = _where(_settled(settings, backend), state, settings.docker_host or docker_host)
    if running is None or not fits(settings, backend):
        return None
    for service in services(home, settings_of(settings, running), database_urls=_own_urls(settings, state)):
        expected = {name: service.environment.get(name) for name in _REACHED_BY}
        known = planned[service.name].environment
        if any(known.get(key, value) != value for key, value in expected.items()):
            return None
    pids = [status.services[name].pid if name in status.services else None for name in planned]
    if not all(pid is not None and is_alive(pid) for pid in pids) or not embedded.all_answer(state, planned):
        return None
    return running if ENGINE not in planned or answers(running.docker_host or "") else None


def _untold(home: Home, settings: Settings, running: RunningStack) -> list[str]:
    """What was set for this call and the services of the running stack were told otherwise, as `NAME=VALUE, not VALUE`.

    Where it answers and what runs its sandboxes is not looked at: those decide whether it is the stack that is meant.
    """
    plan = home.run.read_plan()
    told = {service.name: service.environment for service in plan.services} if plan else {}
    others = {}
    for service in services(home, settings_of(settings, running)):
        known = told.get(service.name, {})
        for name in settings.model_fields_set - _THE_STACK_ITSELF:
            variable = PREFIX + name.upper()
            wanted, has = service.environment.get(variable), known.get(variable)
            if wanted is not None and wanted != has:
                others[variable] = f"{variable}={masked(name, has) or 'unset'}, not {masked(name, wanted)}"
    return [others[variable] for variable in sorted(others)]


def _own_urls(settings: Settings, state: embedded.ServerState | None) -> dict[str, str] | None:
    """What each kind of service logs in with where the database is ours. With a user's own, that is the user's say."""
    return embedded.service_urls(state) if settings.database_url is None and state is not None else None


def _where(settings: Settings, state: embedded.ServerState | None, docker_host: str | None) -> RunningStack | None:
    """Where the stack of settings that leave nothing to choose answers; None if a server is not known yet."""
    database = settings.database_url or (embedded.database_url(state) if state else None)
    broker = settings.broker_url or (embedded.broker_url(state) if state else None)
    if database is None or broker is None:
        return None
    return RunningStack(
        database,
        broker,
        docker_host,
        started_by_us=False,
        sandbox_backend=settings.sandbox_backend,
        sandbox_runtime=settings.sandbox_runtime,
        engine=engine_address(settings.sandbox_backend, settings.home, docker_host),
    )


def _settled(settings: Settings, backend: Chosen | None) -> Settings:
    """Settings in which the backend is no question any more."""
    return settings if backend is None else backend.put_into(settings)


def settings_of(settings: Settings, running: RunningStack) -> Settings:
    """The settings that a service of `running` gets: its URLs and its backend in place of what was not set."""
    return settings.model_copy(
        update={
            "database_url": running.database_url,
            "broker_url": running.broker_url,
            "docker_host": running.docker_host,
            "sandbox_backend": running.sandbox_backend,
            "sandbox_runtime": running.sandbox_runtime,
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
    living = {process.service for process in stack_processes(home.path)}
    kept_backend = planned_backend(before) if living & {ENGINE, worker_name("sandbox")} else None
    backend = settle(settings, kept_backend)
    engine = choose_engine(home, settings, backend, have_private=ENGINE in living, say=say)
    of_engine = (engine.service,) if engine.service else ()

    def prepare() -> embedded.EmbeddedServers | None:
        return embedded.prepare_servers(
            home,
            own_database=settings.database_url is not None,
            own_broker=settings.broker_url is not None,
            living={process.service for process in stack_processes(home.path)},
            say=say,
        )

    def launch(servers: embedded.EmbeddedServers | None) -> None:
        follow(home, (servers.services() if servers else ()) + of_engine + kept)

    servers = embedded.start_servers(prepare, launch, lambda name: is_trying(home, name))
    running = _where(_settled(settings, backend), embedded.read_state(home), engine.host)
    assert running is not None  # noqa: S101 - the servers that were not given were just prepared
    state = embedded.read_state(home)
    if settings.database_url is None and state is not None:
        require_ledger(running.database_url)
        embedded.make_logins(state)
    proven = backend if backend is kept_backend else _proven(settings, backend, running.database_url, say)
    if proven.name != backend.name:
        backend = proven
        engine = choose_engine(home, settings, backend, have_private=ENGINE in living, say=say)
        of_engine = (engine.service,) if engine.service else ()
        running = _where(_settled(settings, backend), state, engine.host)
        assert running is not None  # noqa: S101 - as above
        follow(home, (servers.services() if servers else ()) + of_engine + kept)
    if settings.sandbox_backend == "auto" and backend is not kept_backend:
        say(f"sandboxes: {backend.backend}, {backend.why}")
    wait_for_engine(home, engine, lambda: is_trying(home, ENGINE))
    of_servers = servers.services() if servers else ()
    follow(
        home,
        of_servers
        + of_engine
        + services(home, settings_of(settings, running), database_urls=_own_urls(settings, state)),
    )
    return running


def _proven(settings: Settings, backend: Chosen, database_url: str, say: Say) -> Chosen:
    """The backend, proved where that is ours to do. What proves needs to know what runs here, hence the late import."""
    if not is_free(settings) or backend.backend == "docker":
        return backend
    from patchyard.proving import choose_proven

    with Database(database_url, name="patchyard up", pool_max=1) as db:
        return choose_proven(settings, db, say)


def _stop_workers(home: Home) -> tuple[str, ...]:
    """Stop the services while the servers run, and clear an engine that stays of their sandboxes; what is left of them.

    A private engine takes its containers with it.
    """
    plan = home.run.read_plan()
    planned = {service.name: service for service in plan.services} if plan else {}
    worker = planned.get(worker_name("sandbox"))
    told = worker.environment if worker else {}
    engine = engine_address(told.get("PATCHYARD_SANDBOX_BACKEND", ""), home.path, told.get("PATCHYARD_DOCKER_HOST"))
    if worker is None or engine is None or ENGINE in planned:
        return ()
    from patchyard.local.sandboxes import clear_sandboxes

    follow(home, tuple(service for name, service in planned.items() if name not in service_names()))
    url = worker.environment["PATCHYARD_DATABASE_URL"]
    return clear_sandboxes(url, engine, ledger_is_ours=embedded.POSTGRES in planned)


def _stop_everything(home: Home) -> Leftovers:
    processes = end_stack(home)
    other = remove_remains(home) + tuple(f"sandbox {name}" for name in remove_sandboxes(home.path))
    forget(home)
    return Leftovers(tuple(processes), other)
