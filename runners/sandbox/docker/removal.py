"""Removing a container with its volumes, and seeing that it is gone."""

from __future__ import annotations

import time

from docker import APIClient
from docker.errors import APIError, NotFound

from runners.sandbox.backend import EngineUnavailable

GONE_SECONDS = 20.0


def remove(client: APIClient, container: str) -> None:
    """Kill `container` if it runs, remove it and its volumes. Raises EngineUnavailable when it does not go."""
    until = time.monotonic() + GONE_SECONDS
    while True:
        try:
            client.remove_container(container, force=True, v=True)
        except NotFound:
            return
        except APIError as busy:
            # 409: somebody else is removing it just now; 500: a device was busy, and it wants to be asked again.
            if time.monotonic() > until:
                raise EngineUnavailable(f"the engine does not remove a sandbox: {busy.explanation}") from busy
            time.sleep(0.05)
        else:
            return


def is_gone(client: APIClient, container: str) -> bool:
    """Whether the engine knows nothing of `container` any more; waits for a removal that is under way."""
    until = time.monotonic() + GONE_SECONDS
    while True:
        try:
            client.inspect_container(container)
        except NotFound:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
