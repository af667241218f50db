"""`patchyard scheduler`: one scheduler in the foreground; of several, one is active and the others wait."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from patchyard.cli.console import ExitStatus, leave
from patchyard.cli.service_urls import urls_of
from patchyard.logs import configure_logs
from patchyard.settings import load_settings


def command(
    capacity: Annotated[
        int | None,
        typer.Option("--capacity", min=1, max=100_000, help="Jobs in progress at once, over all workers."),
    ] = None,
) -> None:
    """Admit jobs, send their steps to the workers, and recover what was lost, until a signal ends it.

    Without --capacity, as many jobs are in progress as the settings have slots for models and sandboxes.

    Example: patchyard scheduler --capacity 200
    """
    settings = load_settings()
    database_url, broker_url = urls_of(settings)
    configure_logs(settings.log_level, service="scheduler")
    from ledger.connect import Database
    from patchyard.bell import Bell
    from patchyard.celery_app import Sender, make_app
    from patchyard.depth import Depth
    from patchyard.local.ready import tell_ready
    from scheduler.service import Pace, Scheduler

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    bell, depth = Bell(broker_url), Depth(broker_url)
    with Database(database_url, name="scheduler", pool_max=2, silence_seconds=settings.lease_seconds) as db:
        scheduler = Scheduler(
            db,
            send=Sender(make_app(broker_url)),
            depth=depth,
            wait=lambda seconds: bell.wait(seconds, stop),
            stop=stop,
            pace=Pace(
                capacity=capacity or settings.decide_slots + settings.sandbox_slots,
                lead_seconds=settings.lease_seconds,
            ),
        )
        tell_ready()
        scheduler.serve()
    bell.close()
    depth.close()
    leave(ExitStatus.DONE)
