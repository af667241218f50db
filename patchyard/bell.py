"""The scheduler's bell: whoever makes work for it rings, and it looks at once instead of at its next poll.

A key of the broker that holds at most one element. It is a hint like everything in the broker: a ring may be lost, and
with the broker away the scheduler polls.
"""

from __future__ import annotations

import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from patchyard.celery_app import KEY_PREFIX

KEY = f"{KEY_PREFIX}bell"
_CALL_SECONDS = 5.0
_SILENT_SECONDS = 5.0


class Bell:
    """Rings, or waits for a ring. Connects at the first use; thread-safe."""

    def __init__(self, broker_url: str) -> None:
        self._client = redis.Redis.from_url(
            broker_url,
            socket_timeout=_CALL_SECONDS,
            socket_connect_timeout=_CALL_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._silent_until = 0.0

    def ring(self) -> None:
        """Wake the scheduler, if the broker answers. After a failure nothing is tried for some seconds."""
        if time.monotonic() < self._silent_until:
            return
        try:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.lpush(KEY, "1")
                pipe.ltrim(KEY, 0, 0)
                pipe.execute()
        except redis.RedisError:
            self._silent_until = time.monotonic() + _SILENT_SECONDS

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return after a ring, after so many seconds, or when `stop` is set and the time is short."""
        started = time.monotonic()
        if stop.is_set():
            return
        try:
            self._client.blpop([KEY], timeout=seconds)
        except redis.RedisError:
            stop.wait(max(seconds - (time.monotonic() - started), 0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
