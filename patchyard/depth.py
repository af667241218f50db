"""How many messages wait in the broker: what tells a lost message from one that only waits for its turn."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from patchyard.celery_app import KEY_PREFIX, QUEUES
from scheduler.dispatch import BrokerUnavailable

_CALL_SECONDS = 5.0


class Depth:
    """Counts the waiting messages of all queues. Connects at the first use."""

    def __init__(self, broker_url: str) -> None:
        self._client = redis.Redis.from_url(
            broker_url,
            socket_timeout=_CALL_SECONDS,
            socket_connect_timeout=_CALL_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def __call__(self) -> int:
        """Raises BrokerUnavailable."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for queue in QUEUES:
                    pipe.llen(KEY_PREFIX + queue)
                return sum(pipe.execute())
        except redis.RedisError as error:
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
