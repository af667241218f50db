"""Where a service finds the ledger and the broker: what the settings say, else the local stack's own."""

from __future__ import annotations

from ledger.errors import Unfit
from patchyard.cli.opened import url_of_ledger
from patchyard.local.home import Home
from patchyard.local.servers import broker_url, read_state
from patchyard.settings import Settings


def urls_of(settings: Settings) -> tuple[str, str]:
    """The URLs of the database and the broker. Unfit if one is neither set nor part of a stack here."""
    if settings.database_url is not None and settings.broker_url is not None:
        return settings.database_url, settings.broker_url
    ledger_url = url_of_ledger(settings)
    if settings.broker_url is not None:
        return ledger_url, settings.broker_url
    state = read_state(Home(settings.home.resolve()))
    if state is None:
        raise Unfit(
            f"no stack runs in {settings.home}", remedy="start it with `patchyard up`, or set PATCHYARD_BROKER_URL"
        )
    return ledger_url, broker_url(state)
