"""Processes that die at each named point: another one goes on, and nothing is done or paid for twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from patchyard.local.account import server_account
from patchyard.local.ports import free_port
from patchyard.local.programs import valkey_program
from patchyard.local.valkey import ValkeyServer
from tests.integration.worker.yard import Process, Yard, until

USAGE = {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.001}
REPLAY = [
    {"plan": "one", "usage": USAGE},
    {"tool": "apply_patch", "args": {"edits": [{"path": "a.txt", "version": "@a.txt", "old": "one", "new": "eins"}]}},
    {"tool": "read_file", "args": {"path": "a.txt"}},
    {"final": "done"},
]
DONE_ONCE = {"decision": 4, "action_intended": 1, "tool_result": 2, "verification": 1, "job_ended": 1}


def _ends_as_without_a_crash(yard: Yard, ref: str) -> None:
    yard.wait_for_end(ref)
    assert (yard.job(ref).state, yard.job(ref).reason) == ("failed", "no_tests_ran")
    events = yard.events(ref)
    assert {kind: events.count(kind) for kind in DONE_ONCE} == DONE_ONCE
    assert yard.job(ref).files_changed in (None, 1)
    yard.in_order(ref)


def _died(process: Process) -> bool:
    return process.popen.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("claim.after", 1),
        ("decide.after_model", 2),
        ("act.before_intent", 1),
        ("act.after_intent", 1),
        ("act.after_effect", 1),
        ("complete.before_commit", 3),
        ("complete.after_commit", 3),
    ],
)
def test_a_worker_that_dies_at_a_crash_point_is_followed_by_another(yard: Yard, point: str, nth: int) -> None:
    armed = {"PATCHYARD_CRASH_POINTS": "1", "PATCHYARD_CRASH": f"{point}:{nth}"}
    first = yard.worker(**armed)
    yard.scheduler()
    [ref] = yard.submit(REPLAY)
    until(lambda: _died(first))
    yard.worker()
    _ends_as_without_a_crash(yard, ref)
    tried_again = max(step.attempt for step in yard.steps(ref))
    assert tried_again == (1 if point == "complete.after_commit" else 2)


def test_a_scheduler_that_dies_after_sending_is_followed_by_another(yard: Yard) -> None:
    first = yard.scheduler(PATCHYARD_CRASH_POINTS="1", PATCHYARD_CRASH="dispatch.after_send")
    refs = yard.submit(REPLAY, REPLAY, REPLAY)
    until(lambda: _died(first))
    yard.scheduler()
    yard.worker()
    for ref in refs:
        _ends_as_without_a_crash(yard, ref)
        assert max(step.attempt for step in yard.steps(ref)) == 1


def test_jobs_end_although_every_connection_to_the_ledger_is_cut_again_and_again(yard: Yard) -> None:
    yard.worker()
    yard.scheduler()
    slow = [{"plan": f"{number}", "latency_ms": 150, "usage": USAGE} for number in range(8)] + REPLAY[1:]
    refs = yard.submit(slow, slow, slow)
    enough = threading.Event()

    def cut() -> None:
        with psycopg.connect(yard.db.url, autocommit=True) as connection:
            while not enough.wait(0.4):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    " AND application_name NOT LIKE 'test%'"
                )

    cutter = threading.Thread(target=cut)
    cutter.start()
    time.sleep(6)
    enough.set()
    cutter.join()
    yard.wait_for_end(*refs)
    for ref in refs:
        assert yard.job(ref).reason == "no_tests_ran"
        assert yard.events(ref).count("decision") == 11
        yard.in_order(ref)


class Broker:
    """A Valkey of a test's own, to be killed, stopped and wiped."""

    def __init__(self, folder: Path) -> None:
        account = server_account()
        folder.chmod(0o711)
        self._server = ValkeyServer(
            program=valkey_program(account),
            folder=account.make_folder(folder / "valkey"),
            account=account,
            port=free_port(),
            password="secret",
            durable=False,
        )
        self._server.initialize()
        self._options = account.popen_options()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self._server.url()

    def start(self) -> None:
        process = self._process = subprocess.Popen(
            self._server.argv(),
            env=self._server.environment(),
            cwd="/",
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            **self._options,
        )
        self._server.wait_until_it_answers(lambda: process.poll() is None)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self, seconds: float) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._process.pid, signal.SIGCONT)


@pytest.fixture
def own_broker(server_folder: Path) -> Iterator[Broker]:
    folder = server_folder / f"own-{socket.gethostname()}-{time.monotonic_ns()}"
    folder.mkdir()
    broker = Broker(folder)
    broker.start()
    yield broker
    broker.kill()


def test_jobs_end_although_the_broker_is_killed_wiped_and_paused(yard: Yard, own_broker: Broker) -> None:
    yard.use_broker(own_broker.url)
    scheduler, worker = yard.scheduler(), yard.worker()
    slow = [{"plan": f"{number}", "latency_ms": 300} for number in range(8)] + REPLAY[1:]
    refs = yard.submit(slow, slow)
    until(lambda: len(yard.steps(refs[0])) >= 3)
    own_broker.kill()
    time.sleep(1.5)
    own_broker.start()  # empty: it keeps nothing on disk
    until(lambda: len(yard.steps(refs[0])) >= 5, seconds=40)
    own_broker.pause(2)
    yard.wait_for_end(*refs, seconds=60)
    assert worker.popen.poll() is None
    assert scheduler.popen.poll() is None
    for ref in refs:
        assert yard.job(ref).reason == "no_tests_ran"
        yard.in_order(ref)
