"""One worker process of the ledger's benchmark: patchyard's own with work that does nothing, or Celery's alone.

`patchyard` is all of a worker but its works: Celery's consumer, the hint's check, the claim with its hold, the kept
lease, the completion with event, model state and next step, that step's message, the logs. `celery` is the same
consumer with the same settings and a task that does nothing, through kombu's own transport. Both write marks to a pipe:
`R` when ready, then, as `--mark` asks, `c` when work may begin (in patchyard: under a lease) or `d` when it is done.
"""

from __future__ import annotations

import argparse
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, signals
from kombu.entity import Exchange
from kombu.entity import Queue as BrokerQueue

from ledger.connect import Database
from ledger.errors import PatchyardError
from ledger.records.budget import Amounts
from ledger.records.decision import Usage
from ledger.records.job import Reason
from ledger.records.step import Claim, Completion, Event, NextStep, Queue
from patchyard.bell import Bell
from patchyard.celery_app import Sender, make_app
from patchyard.lease_keeper import LeaseKeeper
from patchyard.lease_owner import owner_of
from patchyard.logs import configure_logs
from patchyard.step_work import Outcome, StepWorker

MARK = struct.Struct("=cq")
"""One mark: what, and time.monotonic_ns(), which all processes of a machine share."""
LEASE_SECONDS = 30.0
TASK = "bare.noop"
QUEUE: Queue = "decide"

_HELD = Amounts(steps=1, input_tokens=2_000, output_tokens=500, cost_microusd=9_000)
_USAGE = Usage(input_tokens=1_800, output_tokens=120, cost_microusd=6_000)
_TOOK = Amounts(steps=1, input_tokens=1_800, output_tokens=120, cost_microusd=6_000)


def main() -> None:
    """Serve until SIGTERM."""
    told = argparse.ArgumentParser()
    told.add_argument("--system", choices=("patchyard", "celery"), required=True)
    told.add_argument("--threads", type=int, required=True)
    told.add_argument("--marks", type=int, required=True, help="the pipe's file descriptor")
    told.add_argument("--mark", choices=("c", "d"), required=True)
    given = told.parse_args()

    def mark(what: bytes) -> None:
        os.write(given.marks, MARK.pack(what, time.monotonic_ns()))

    def note(what: bytes) -> None:
        if what == given.mark.encode():
            mark(what)

    configure_logs("info", service="worker")
    signals.setup_logging.connect(_keep_our_logs, weak=False)
    signals.worker_ready.connect(lambda **_: mark(b"R"), weak=False)
    broker_url = os.environ["PATCHYARD_BROKER_URL"]
    if given.system == "celery":
        app = bare_app(broker_url, note)
    else:
        app = _patchyard_app(os.environ["PATCHYARD_DATABASE_URL"], broker_url, given.threads, note)
    app.Worker(
        queues=[QUEUE],
        concurrency=given.threads,
        pool="threads",
        hostname=f"{given.system}-{os.getpid()}@bench",
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    ).start()


def _keep_our_logs(**_: Any) -> None:
    """Celery sets up no logging of its own when somebody receives this signal."""


def bare_app(broker_url: str, note: Callable[[bytes], None] = lambda _: None) -> Celery:
    """Celery with patchyard's settings and one task that does nothing."""
    app = Celery("bare", broker=broker_url, set_as_current=False, fixups=[])
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_ignore_result=True,
        result_backend=None,
        accept_content=["json"],
        task_serializer="json",
        task_queues=[BrokerQueue(QUEUE, Exchange(""), routing_key=QUEUE)],  # type: ignore[no-untyped-call]
        task_default_queue=QUEUE,
        task_default_exchange="",
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 26 * 3600, "socket_timeout": 30, "socket_keepalive": True},
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        task_send_sent_event=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )

    @app.task(name=TASK, shared=False)  # type: ignore[untyped-decorator]
    def noop(_number: int, _queue: str) -> None:
        note(b"c")
        note(b"d")

    return app


def _patchyard_app(database_url: str, broker_url: str, threads: int, note: Callable[[bytes], None]) -> Celery:
    db = Database(database_url, name="bench-worker", pool_max=threads + 2, silence_seconds=LEASE_SECONDS)

    def handle(step_id: int, queue: str) -> None:
        worker.handle(step_id, queue)
        note(b"d")

    app = make_app(broker_url, handle)
    worker = StepWorker(
        db=db,
        works={"decide": _NoWork(note)},
        keeper=LeaseKeeper(db, LEASE_SECONDS),
        owner=owner_of("bench"),
        lease_seconds=LEASE_SECONDS,
        send=Sender(app),
        ring=Bell(broker_url).ring,
        slots={QUEUE: threads},
    )
    return app


class _NoWork:
    """Decide steps that decide nothing: a hold, what a model call would leave behind, and the next turn."""

    def __init__(self, note: Callable[[bytes], None]) -> None:
        self._note = note

    def estimate(self, claim: Claim) -> Amounts:
        return _HELD

    def prepare(self, claim: Claim) -> None:
        """Nothing has to be fetched."""

    def do(self, claim: Claim, stop: threading.Event) -> Outcome:
        self._note(b"c")
        last = claim.seq >= claim.job.model_options["turns"]
        result = {"kind": "plan", "text": "Nothing to do yet.", "usage": _USAGE.plain()}
        return Completion(
            result=result,
            spent=_TOOK,
            next=None if last else NextStep(kind="decide"),
            end="no_progress" if last else None,
            model_state={"position": claim.seq},
            events=(Event(kind="decision", body={**result, "model": claim.job.model}),),
        )

    def exhausted_reason(self, error: PatchyardError) -> Reason:
        return "too_many_attempts"


if __name__ == "__main__":
    main()
