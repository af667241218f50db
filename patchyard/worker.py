"""One worker process: Celery's consumer with a pool of threads, and everything that the steps of its queues need.

Threads serve all kinds, since every kind waits on something else: on a model, on an engine, on git. They also keep the
process in one piece: a cold shutdown raises in the main thread only and never inside of a commit.

The end is soft and bounded. On SIGTERM nothing new is claimed; after `_GRACE_SECONDS` the work that is left is told to
stop, its sandboxes die, and its steps are given back; after `_END_SECONDS` the process is gone whatever happens.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog
from celery import signals
from celery.platforms import EX_OK
from celery.worker import state

from ledger.connect import Database
from ledger.objects import get_object
from ledger.records.step import Claim, Queue, StepKind
from ledger.sandboxes import renew_armed
from ledger.stored import live_images
from patchyard.backends import Chosen, address_of, connect, name_in_ledger
from patchyard.bell import Bell
from patchyard.celery_app import Sender, make_app
from patchyard.janitor import Janitor
from patchyard.keeping import Kept, open_mirrors
from patchyard.lease_keeper import LeaseKeeper
from patchyard.lease_owner import forfeit_of_the_dead, owner_of
from patchyard.local.ready import tell_ready
from patchyard.proving import choose_proven
from patchyard.reaper import Reaper
from patchyard.room_watch import RoomWatch
from patchyard.settings import Settings
from patchyard.step_work import StepWorker, Work
from patchyard.works import DecideWork, RunnerWork
from runners.act import act
from runners.effects.credentials import Credentials
from runners.isolation import Isolation
from runners.publish import publish
from runners.registry import ARMED_LEASE_SECONDS, LedgerRegistry
from runners.runner import Runner
from runners.sandbox.armoury import Armoury
from runners.sandbox.backend import Backend
from runners.verify import verify
from scheduler.decide import Decider
from scheduler.models.replay import ReplayModel

log = structlog.get_logger(__name__)

_GRACE_SECONDS = 6.0
_END_SECONDS = 16.0


@dataclass(frozen=True)
class Place:
    """Where this worker works: its queues, how many steps of each at once, its name, and the servers' URLs."""

    slots: Mapping[Queue, int]
    name: str
    database_url: str
    broker_url: str

    @property
    def threads(self) -> int:
        """How many steps at once over all queues."""
        return sum(self.slots.values())


def serve(settings: Settings, place: Place) -> int:
    """Work until a signal ends the process; returns its exit status."""
    with ExitStack() as stack:
        stopping = threading.Event()
        db = stack.enter_context(
            Database(
                place.database_url,
                name=place.name,
                pool_max=place.threads + 2,
                silence_seconds=settings.lease_seconds,
            )
        )
        keeper = LeaseKeeper(db, settings.lease_seconds)
        stack.callback(keeper.close)
        bell = Bell(place.broker_url)
        stack.callback(bell.close)
        forfeit_of_the_dead(db, place.name)
        app = make_app(place.broker_url, lambda step_id, queue: worker.handle(step_id, queue))
        worker = StepWorker(
            db=db,
            works=_works(settings, place.slots, db, stack),
            keeper=keeper,
            owner=owner_of(place.name),
            lease_seconds=settings.lease_seconds,
            send=Sender(app),
            ring=bell.ring,
            slots=place.slots,
            stopping=stopping,
        )
        with _signals(stopping, keeper):
            return _consume(app, place)


def _consume(app: Any, place: Place) -> int:
    """Run Celery's worker in this thread until it ends."""
    celery_worker = app.Worker(
        queues=list(place.slots),
        concurrency=place.threads,
        pool="threads",
        hostname=f"{place.name}@{socket.gethostname()}",
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    celery_worker.start()
    return int(celery_worker.exitcode or 0)


def _works(settings: Settings, queues: Mapping[Queue, int], db: Database, stack: ExitStack) -> dict[StepKind, Work]:
    works: dict[StepKind, Work] = {}
    if "decide" in queues:
        works["decide"] = DecideWork(Decider(models={"replay": ReplayModel(lambda sha256: get_object(db, sha256))}))
    if "sandbox" in queues or "publish" in queues:
        runner, kept = _runner(settings, db, stack, runs_sandboxes="sandbox" in queues)
        janitor = Janitor(kept, (lambda: live_images(db)) if "sandbox" in queues else None)
        stack.callback(janitor.close)
        require_room = _room(kept, RoomWatch(kept.require_room, janitor.hurry))
        if "sandbox" in queues:
            works["act"] = RunnerWork(act, runner, require_room)
            works["verify"] = RunnerWork(verify, runner, require_room)
            reaper = Reaper(db, runner.backend, runner.engine_host)
            stack.callback(reaper.close)
        if "publish" in queues:
            credentials = Credentials.read(settings.credentials) if settings.credentials else None
            works["publish"] = RunnerWork(publish, replace(runner, credentials=credentials), require_room)
    return works


def _room(kept: Kept, watch: RoomWatch) -> Callable[[Claim], None]:
    """What is asked before a step is claimed."""

    def require_room(claim: Claim) -> None:
        watch.require()
        if claim.kind != "publish":
            kept.use_image(claim.job.image)

    return require_room


def _runner(settings: Settings, db: Database, stack: ExitStack, *, runs_sandboxes: bool) -> tuple[Runner, Kept]:
    if runs_sandboxes:
        chosen = choose_proven(settings, db, lambda line: log.info("sandbox_backend_tried", told=line))
    else:
        chosen = Chosen("docker", None, "it runs no sandboxes")
    address = address_of(chosen, settings)
    engine_host = name_in_ledger(address)
    if runs_sandboxes:
        log.info("sandbox_backend", backend=chosen.backend, runtime=chosen.runtime, engine=engine_host, why=chosen.why)
    backend = connect(address, LedgerRegistry(db, engine_host), chosen.runtime)
    stack.callback(backend.close)
    mirrors = open_mirrors(settings)
    kept = Kept(settings, mirrors, backend if runs_sandboxes else None)
    runner = Runner(
        db=db,
        mirrors=mirrors,
        backend=backend,
        engine_host=engine_host,
        isolation=Isolation(settings.probe_ttl_seconds),
        restock=kept.restock,
        network=settings.network,
        armoury=_armoury(settings, db, backend, stack) if runs_sandboxes else None,
    )
    return runner, kept


def _armoury(settings: Settings, db: Database, backend: Backend, stack: ExitStack) -> Armoury | None:
    """As many are started ahead as work at once, if nothing else was said."""
    slots = settings.sandbox_slots if settings.armed is None else settings.armed
    if slots == 0:
        return None
    armoury = Armoury(backend, slots, lambda names: renew_armed(db, names, ARMED_LEASE_SECONDS))
    stack.callback(armoury.close)
    return armoury


@contextmanager
def _signals(stopping: threading.Event, keeper: LeaseKeeper) -> Iterator[None]:
    """Ties Celery's start and end to ours: one soft way to end for every signal that asks for it.

    Celery itself would end cold on some signals, start itself anew on another, and write to stdout.
    """

    def end(*_: Any, **__: Any) -> None:
        state.should_stop = EX_OK
        if not stopping.is_set():
            stopping.set()
            threading.Thread(target=_end_within_bounds, args=(keeper,), name="end", daemon=True).start()

    def on_ready(**_: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, end)
        log.info("worker_ready")
        tell_ready()

    def keep_our_logs(**_: Any) -> None:
        """Celery sets up no logging of its own when somebody receives this signal."""

    receivers = {
        signals.setup_logging: keep_our_logs,
        signals.worker_ready: on_ready,
        signals.worker_shutting_down: end,  # a signal that came before we were ready
    }
    for sent, receiver in receivers.items():
        sent.connect(receiver, weak=False)
    try:
        yield
    finally:
        for sent, receiver in receivers.items():
            sent.disconnect(receiver)


def _end_within_bounds(keeper: LeaseKeeper) -> None:
    wait = threading.Event().wait
    log.info("worker_stops", held=len(keeper), grace_seconds=_GRACE_SECONDS)
    wait(_GRACE_SECONDS)
    if len(keeper):
        log.warning("work_is_stopped", held=len(keeper))
    keeper.stop_all()
    wait(_END_SECONDS - _GRACE_SECONDS)
    log.error("worker_ends_hard", held=len(keeper))
    os._exit(1)
