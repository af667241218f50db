"""`patchyard up`: the local stack runs when this returns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from patchyard.cli.console import ExitStatus, leave, print_json, say
from patchyard.local.stack import ensure_up
from patchyard.settings import load_settings, masked_url


def command(
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Return when every service is ready, or as soon as all are started."),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where the stack answers as JSON, passwords included.")
    ] = False,
) -> None:
    """Start the local stack: database, broker, engine, workers and scheduler, as far as they do not run yet.

    Their state is kept under PATCHYARD_HOME. A service whose settings changed since it was started is restarted.

    Example: [bold]patchyard up && patchyard ps[/bold]
    """
    settings = load_settings()
    try:
        running = ensure_up(settings, apply_changes=True, wait=wait, say=say)
    except KeyboardInterrupt:
        say("patchyard: interrupted; what this call had started is stopped again")
        leave(ExitStatus.INTERRUPTED)
    if as_json:
        print_json(asdict(running))
        return
    print(f"database  {masked_url(running.database_url)}")
    print(f"broker    {masked_url(running.broker_url)}")
    print(f"engine    {running.engine or 'none'}")
    print(f"logs      {settings.home / 'logs'}")
