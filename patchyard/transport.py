"""kombu's Redis transport, made to survive anything that somebody writes into a queue.

As it is, one item in a queue's list that is no JSON ends the worker that reads it, and a message may carry what we
never send: other tasks, delays, expiry, callbacks, pickled bodies. Here only two values are taken from an item, a
step's id and a queue's name, and the message that Celery gets is built anew around them. An item without them is
logged and dropped.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from queue import Empty
from typing import Any

import structlog
from kombu.transport import redis

log = structlog.get_logger(__name__)

STEP_TASK = "patchyard.step"
_MAX_ID = 2**63 - 1
_MAX_BODY_CHARS = 4_096
_SHOWN_CHARS = 200
_numbers = itertools.count(1)


class _CarefulChannel(redis.Channel):
    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """One client for all commands but BRPOP: the base class makes one each time, at more than a command's price."""
        yield client or self._shared_client

    @cached_property
    def _shared_client(self) -> Any:
        return self._create_client()  # type: ignore[no-untyped-call]

    def put_hint(self, step_id: int, queue: str) -> None:
        """Put the message of a step into its queue."""
        self._put(queue, _message(step_id, queue, queue))  # type: ignore[no-untyped-call]

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (ValueError, RecursionError) as error:
            log.warning("message_dropped", why=f"no JSON: {error}"[:_SHOWN_CHARS])
            raise Empty from None


class CarefulTransport(redis.Transport):
    """Delivers messages of our one task and nothing else."""

    Channel = _CarefulChannel

    def _deliver(self, message: Any, queue: str) -> Any:
        try:
            step_id, named_queue = _hint_of(message)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            shown = repr(message)[:_SHOWN_CHARS]
            log.warning("message_dropped", why=f"{type(error).__name__}: {error}"[:_SHOWN_CHARS], message=shown)
            return None
        return super()._deliver(_message(step_id, named_queue, queue), queue)  # type: ignore[no-untyped-call]


def _hint_of(message: Any) -> tuple[int, str]:
    """The step's id and the queue's name in a raw message of the broker."""
    if message["headers"]["task"] != STEP_TASK:
        raise ValueError("not our task")
    if len(message["body"]) > _MAX_BODY_CHARS:
        raise ValueError("too long")
    (step_id, queue), _, _ = json.loads(base64.b64decode(message["body"], validate=True))
    if type(step_id) is not int or not 0 < step_id <= _MAX_ID or type(queue) is not str:
        raise ValueError("no step id and queue")
    return step_id, queue


def _message(step_id: int, named_queue: str, queue: str) -> dict[str, Any]:
    """A message in Celery's protocol 2, as the broker would hold it, that came out of `queue`."""
    identity = f"{step_id}.{next(_numbers)}"
    body = json.dumps([[step_id, named_queue], {}, {}]).encode()
    return {
        "body": base64.b64encode(body).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": STEP_TASK, "id": identity, "root_id": identity, "retries": 0},
        "properties": {
            "correlation_id": identity,
            "delivery_tag": identity,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
        },
    }
