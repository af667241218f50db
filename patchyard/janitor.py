"""Keeps what is kept on this machine within its quotas, now and then and whenever the disk is filling up.

Of several workers on one PATCHYARD_HOME, one at a time does it. It says what it took away, and, once, what is over its
quota and could not go because it is in use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from ledger.errors import PatchyardError
from patchyard.keeping import Kept
from runners.eviction import Evicted

log = structlog.get_logger(__name__)

_PAUSE_SECONDS = 2.0
"""Between two times, however many wait for room."""


class Janitor:
    """Tidies at once and then every `every_seconds`, in a thread of its own, until closed.

    `live_images` gives the digests of the images of all jobs that have not ended. Without it, as in a worker that runs
    no sandboxes, images are not looked at.
    """

    def __init__(self, kept: Kept, live_images: Callable[[], set[str]] | None, every_seconds: float = 60.0) -> None:
        self._kept, self._live_images, self._every_seconds = kept, live_images, every_seconds
        self._closed, self._wanted = threading.Event(), threading.Event()
        self._told: dict[str, bool] = {}
        self._thread = threading.Thread(target=self._tidy_forever, name="janitor", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Tidy soon: somebody waits for room."""
        self._wanted.set()

    def close(self) -> None:
        """Tidy no more."""
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def _tidy_forever(self) -> None:
        away = False
        while not self._closed.is_set():
            try:
                with self._kept.alone() as alone:
                    if alone:
                        self._tidy()
                    else:
                        self._kept.learn_folders()
                away = False
            except (PatchyardError, OSError) as error:
                if not away:
                    log.warning("janitor_waits", why=str(error))
                away = True
            self._closed.wait(min(_PAUSE_SECONDS, self._every_seconds))
            self._wanted.wait(self._every_seconds)
            self._wanted.clear()

    def _tidy(self) -> None:
        self._tell("mirrors", self._kept.tidy_mirrors())
        if self._live_images is not None:
            self._tell("images", self._kept.tidy_images(self._live_images()))

    def _tell(self, what: str, done: Evicted) -> None:
        for item in done.removed:
            log.info("evicted", kind=item.kind, name=item.name, bytes=item.size_bytes)
        if not done.enough and self._told.get(what, True):
            log.warning("over_quota", kind=what, bytes=done.kept_bytes, why="what is left is in use, or all there is")
        self._told[what] = done.enough
