"""The Celery application: three queues, one task, and settings that make the broker a hint and nothing more.

A message names a step and a queue. It can be lost, repeated, late or made up, and none of that matters: a worker only
asks the ledger whether there is something to claim. Importing this module connects to nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery
from kombu.connection import Connection
from kombu.entity import Exchange
from kombu.entity import Queue as BrokerQueue
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ledger.records.step import QUEUE_OF, Offer, Queue
from patchyard.transport import STEP_TASK, CarefulTransport
from scheduler.dispatch import BrokerUnavailable

QUEUES: tuple[Queue, ...] = tuple(dict.fromkeys(QUEUE_OF.values()))
KEY_PREFIX = "patchyard:"
"""Of all our keys in the broker."""

Handle = Callable[[int, str], None]
"""Does what a hint (a step's id, a queue's name) leads to."""

_SEND_TIMEOUT_SECONDS = 5


def make_app(broker_url: str, handle: Handle | None = None) -> Celery:
    """The application for a broker. A worker gives `handle`; a sender needs none."""
    for variable in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        os.environ.pop(variable, None)  # Celery would believe these over our own setting
    app = Celery("patchyard", broker=celery_url(broker_url), set_as_current=False, fixups=[])
    app.amqp.Connection = _Connection
    app.conf.update(_SETTINGS)

    @app.task(name=STEP_TASK, shared=False)  # type: ignore[untyped-decorator]
    def step(step_id: int, queue: str) -> None:
        if handle is not None:
            handle(step_id, queue)

    return app


class _Connection(Connection):
    """Careful transport; and a consumer that lost its broker tries again every few seconds, not ever more rarely."""

    def get_transport_cls(self) -> Any:
        """The class of the connection's transport."""
        careful = self.transport_cls in ("redis", "rediss")
        return CarefulTransport if careful else super().get_transport_cls()  # type: ignore[no-untyped-call]

    def ensure_connection(self, errback: Any = None, max_retries: Any = None, **options: Any) -> Any:
        options |= {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 3}
        return super().ensure_connection(errback, max_retries, **options)  # type: ignore[no-untyped-call]


_KOMBU_QUEUES = {name: BrokerQueue(name, Exchange(""), routing_key=name) for name in QUEUES}  # type: ignore[no-untyped-call]

_SETTINGS: dict[str, Any] = {
    # A message counts as taken until its step was done or given back, so that no more are taken than there are threads.
    "task_acks_late": True,
    "task_acks_on_failure_or_timeout": True,
    "task_reject_on_worker_lost": True,
    # Waiting steps stay in the queue, where any worker can take them.
    "worker_prefetch_multiplier": 1,
    "task_ignore_result": True,
    "result_backend": None,
    "accept_content": ["json"],
    "task_serializer": "json",
    "task_queues": list(_KOMBU_QUEUES.values()),
    "task_default_queue": "decide",
    "task_default_exchange": "",
    "task_create_missing_queues": False,
    # The lease refuses duplicates already; killing live work on a blip of the broker would cost more.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_pool_limit": None,
    "broker_transport_options": {
        # So that a Redis may be shared with another Celery application.
        "global_keyprefix": KEY_PREFIX,
        "socket_timeout": 30,
        "socket_connect_timeout": _SEND_TIMEOUT_SECONDS,
        "socket_keepalive": True,
        "health_check_interval": 10,
        # What a worker has taken and not done is kept in its memory only: it goes back into the queue when the worker
        # ends in order, and when it dies the ledger offers the step again. Keeping it in the broker would cost two more
        # calls a message, and tell nobody anything that the ledger does not know.
        "ack_emulation": False,
        # No message has a priority, so a queue is one list and not four.
        "priority_steps": [0],
    },
    # Whoever can write to the broker must not be able to stop or reconfigure workers.
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
    "task_send_sent_event": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}


def celery_url(broker_url: str) -> str:
    """`unix://[:PASSWORD@]/path?db=N`, the form of the Redis client, in Celery's form; other URLs as they are."""
    parts = urlsplit(broker_url)
    if parts.scheme != "unix":
        return broker_url
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{user}{parts.path}?virtual_host={database}"


class Sender:
    """Sends the message of an offered step. Each thread has a connection of its own, made at its first message."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._local = threading.local()

    def __call__(self, offer: Offer) -> None:
        """Raises BrokerUnavailable within seconds when the broker does not answer."""
        try:
            self._channel().put_hint(offer.step_id, offer.queue)
        except (OperationalError, RedisError, OSError) as error:
            self.close()
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        """Close this thread's connection."""
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.collect()

    def _channel(self) -> Any:
        found = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._app.connection_for_write(
                connect_timeout=_SEND_TIMEOUT_SECONDS,
                transport_options={"max_retries": 0, "socket_timeout": _SEND_TIMEOUT_SECONDS},
            )
        return found.default_channel
