"""`patchyard worker`: one worker in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.errors import BadInput
from ledger.records.step import Queue
from patchyard.celery_app import QUEUES
from patchyard.cli.service_urls import urls_of
from patchyard.logs import configure_logs
from patchyard.settings import Settings, load_settings


def command(
    queues: Annotated[str, typer.Option("--queues", help="Which steps to do: some of decide, sandbox, publish.")],
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=1000, help="Steps of each queue at once, instead of the settings'."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The worker's name in the jobs' history.")] = None,
) -> None:
    """Work on the steps of some queues until a signal ends it. Logs are JSON lines, or text on a terminal.

    On SIGTERM it finishes what it can in some seconds, stops and gives back the rest, and ends.

    Example: patchyard worker --queues decide,sandbox --concurrency 4
    """
    chosen = parse_queues(queues)
    settings = load_settings()
    database_url, broker_url = urls_of(settings)
    configure_logs(settings.log_level, service="worker")
    from patchyard.worker import Place, serve

    place = Place(
        slots={queue: concurrency or slots_of(settings, queue) for queue in chosen},
        name=name or "-".join(chosen),
        database_url=database_url,
        broker_url=broker_url,
    )
    raise typer.Exit(serve(settings, place))


def parse_queues(text: str) -> list[Queue]:
    """The queues of a comma-separated list, each once. BadInput."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in QUEUES]
    if unknown or not names:
        what = f"no queue {unknown[0]!r}" if unknown else "no queue is named"
        raise BadInput(what, where="--queues", remedy=f"choose of {', '.join(QUEUES)}")
    return [queue for queue in QUEUES if queue in names]


def slots_of(settings: Settings, queue: Queue) -> int:
    """How many steps of a queue the settings allow at once."""
    return {
        "decide": settings.decide_slots,
        "sandbox": settings.sandbox_slots,
        "publish": settings.publish_slots,
    }[queue]
