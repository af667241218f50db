"""Which container engine a stack uses, and the private one's place in the plan.

The user's choice comes first, then what this stack already has, then an OCI runtime that needs no engine, then the
system's engine, then a private one made now: a stack never changes what runs its sandboxes under running jobs because
something better appeared.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from ledger.errors import Unfit
from patchyard.backends import REMEDY, Chosen, choose_backend
from patchyard.local.engine import DEFAULT_HOST, EngineSilent, PrivateEngine, answers, private_engine
from patchyard.local.home import Home
from patchyard.local.logs import last_lines
from patchyard.local.plan import Plan, Service
from patchyard.local.services import base_environment, worker_name
from patchyard.settings import Settings

ENGINE = "engine"
ENGINE_STAGE = 1
_START_SECONDS = 60.0


@dataclass(frozen=True)
class EngineChoice:
    """The engine's address, and the service that runs it when it is ours. Both None: no engine is needed."""

    host: str | None
    service: Service | None = None


def choose_engine(
    home: Home, settings: Settings, chosen: Chosen, *, have_private: bool, say: Callable[[str], None]
) -> EngineChoice:
    """The engine for the stack in `home` whose backend was chosen; a private one is prepared, not started.

    Raises Unfit when one is needed and there can be none.
    """
    if chosen.backend != "docker":
        return EngineChoice(None)
    if settings.docker_host is not None:
        if not answers(settings.docker_host):
            raise Unfit(
                f"{settings.docker_host}: the container engine does not answer",
                remedy="start it, or correct PATCHYARD_DOCKER_HOST or DOCKER_HOST",
            )
        return EngineChoice(settings.docker_host)
    if not have_private and answers(DEFAULT_HOST):
        return EngineChoice(DEFAULT_HOST)
    try:
        engine = private_engine(home.engine)
    except Unfit as neither:
        if settings.sandbox_backend != "auto":
            raise
        raise Unfit(f"{neither.what}; {chosen.why}", remedy=REMEDY) from neither
    if not have_private:
        say("starting a container engine of our own, with folders of its own")
        engine.prepare()
    return EngineChoice(engine.host, _service(home, engine))


def planned_backend(plan: Plan | None) -> Chosen | None:
    """The backend that a plan's workers were told to use, if they were told."""
    worker = next((one for one in plan.services if one.name == worker_name("sandbox")), None) if plan else None
    told = worker.environment if worker else {}
    runtime, why = told.get("PATCHYARD_SANDBOX_RUNTIME"), "this stack has it already"
    match told.get("PATCHYARD_SANDBOX_BACKEND"):
        case "docker":
            return Chosen("docker", runtime, why)
        case "oci":
            return Chosen("oci", runtime, why)
        case _:
            return None


def settle(settings: Settings, kept: Chosen | None) -> Chosen:
    """The backend of a stack: the user's say, else the one that it has, else the fastest that works here.

    Raises Unfit or BadInput for one that is asked for and cannot be had.
    """
    if kept is not None and settings.sandbox_backend == "auto" and settings.docker_host is None:
        return kept
    return choose_backend(settings)


def fits(settings: Settings, planned: Chosen | None) -> bool:
    """Whether a stack with this backend and runtime is what the settings mean."""
    if planned is not None and settings.sandbox_runtime not in (None, planned.runtime):
        return False
    if settings.sandbox_backend == "auto":
        return settings.docker_host is None or planned is None or planned.backend == "docker"
    return planned is None or planned.backend == settings.sandbox_backend


def wait_for_engine(home: Home, choice: EngineChoice, is_trying: Callable[[], bool]) -> None:
    """Return when a private engine answers; `Unfit` with its last line when it does not."""
    if choice.service is None or choice.host is None:
        return
    deadline = time.monotonic() + _START_SECONDS
    while not answers(choice.host):
        if not is_trying() or time.monotonic() > deadline:
            lines = last_lines(home.log(ENGINE), 1)
            what = "the container engine did not start" + (f": {lines[0]}" if lines else "")
            raise Unfit(what, remedy=f"see {home.log(ENGINE)}")
        time.sleep(0.05)


def remove_remains(home: Home) -> tuple[str, ...]:
    """Take away what the private engine's processes have left; returns what is still there."""
    if not home.engine.is_dir() or os.geteuid() != 0:
        return ()
    try:
        private_engine(home.engine).remove_remains()
    except (EngineSilent, Unfit) as error:
        return (error.message,)
    return ()


def _service(home: Home, engine: PrivateEngine) -> Service:
    return Service(
        name=ENGINE,
        argv=engine.argv,
        environment=base_environment(),
        working_folder="/",
        log=str(home.log(ENGINE)),
        stage=ENGINE_STAGE,
        stop_signal=signal.SIGTERM,
        stop_seconds=30,
    )
