"""The servers and processes of the ledger's benchmark: a PostgreSQL with fsync on, a Valkey, workers, a scheduler."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from bench.ledger_worker import MARK
from patchyard.local.account import Account, server_account
from patchyard.local.ports import free_port
from patchyard.local.postgres import PostgresServer
from patchyard.local.programs import postgres_programs, valkey_program
from patchyard.local.valkey import ValkeyServer

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Servers:
    """A PostgreSQL and a Valkey that run, with the settings of patchyard's local stack."""

    postgres: PostgresServer
    valkey: ValkeyServer
    folder: Path

    def database(self, name: str) -> str:
        """The URL of a new database."""
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.postgres.url(name)

    def broker(self, number: int) -> str:
        """The URL of one of Valkey's databases."""
        return self.valkey.url(number)


@contextmanager
def running_servers(folder: Path) -> Iterator[Servers]:
    """Both servers, for as long as the block runs. Databases are durable: fsync, full pages, an append-only file."""
    account = server_account()
    postgres = PostgresServer(
        programs=postgres_programs(account),
        folder=account.make_folder(folder / "postgres"),
        account=account,
        port=free_port(),
        password=secrets.token_hex(16),
    )
    valkey = ValkeyServer(
        program=valkey_program(account),
        folder=account.make_folder(folder / "valkey"),
        account=account,
        port=free_port(),
        password=secrets.token_hex(16),
    )
    postgres.initialize()
    valkey.initialize()
    with (
        _server(postgres.argv(), postgres.environment(), account, folder / "postgres.log", signal.SIGINT) as lives,
        _server(valkey.argv(), valkey.environment(), account, folder / "valkey.log", signal.SIGTERM) as lives_too,
    ):
        postgres.wait_until_it_answers(lives)
        valkey.wait_until_it_answers(lives_too)
        postgres.create_database()
        yield Servers(postgres, valkey, folder)


@contextmanager
def _server(
    argv: list[str], env: dict[str, str], account: Account, log: Path, stop: signal.Signals
) -> Iterator[Callable[[], bool]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **account.popen_options(),
        )
    try:
        yield lambda: process.poll() is None
    finally:
        _end(process, stop)


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Worker:
    """A worker process and the pipe on which it makes its marks."""

    def __init__(self, marks: int) -> None:
        self._marks, self._rest = marks, b""

    def next(self, what: bytes) -> int:
        """The time of the next mark of this kind, in nanoseconds of the monotonic clock."""
        while True:
            while len(self._rest) >= MARK.size:
                kind, at = MARK.unpack_from(self._rest)
                self._rest = self._rest[MARK.size :]
                if kind == what:
                    return int(at)
            if not select.select([self._marks], [], [], _PATIENCE_SECONDS)[0]:
                raise SystemExit("a worker says nothing; its log is kept beside the servers'")
            read = os.read(self._marks, 65_536)
            if not read:
                raise SystemExit("a worker ended")
            self._rest += read


@contextmanager
def running_worker(
    servers: Servers, system: str, *, threads: int, mark: str, broker: str, database: str = ""
) -> Iterator[Worker]:
    """One worker process of a system that is ready, stopped at the end. See `bench.ledger_worker`."""
    reads, writes = os.pipe()
    argv = [sys.executable, "-m", "bench.ledger_worker", "--system", system, "--threads", str(threads)]
    argv += ["--marks", str(writes), "--mark", mark]
    with (servers.folder / f"{system}.log").open("ab") as log:
        process = subprocess.Popen(
            argv, env=_environment(servers, broker, database), stdout=log, stderr=log, pass_fds=[writes]
        )
    os.close(writes)
    worker = Worker(reads)
    try:
        worker.next(b"R")
        yield worker
    finally:
        _end(process, signal.SIGTERM)
        os.close(reads)


@contextmanager
def running_scheduler(servers: Servers, *, capacity: int, broker: str, database: str) -> Iterator[None]:
    """`patchyard scheduler`, leading."""
    log = servers.folder / "scheduler.log"
    began = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "patchyard.cli", "scheduler", "--capacity", str(capacity)],
            env=_environment(servers, broker, database),
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while b'"lead_taken"' not in log.read_bytes()[began:]:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the scheduler does not lead: {log.read_text()[began:]}")
            time.sleep(0.05)
        yield
    finally:
        _end(process, signal.SIGTERM)


def _environment(servers: Servers, broker: str, database: str) -> dict[str, str]:
    told = {
        "PATCHYARD_HOME": str(servers.folder),
        "PATCHYARD_DATABASE_URL": database,
        "PATCHYARD_BROKER_URL": broker,
    }
    return {**os.environ, "PYTHONUNBUFFERED": "1", **told}
