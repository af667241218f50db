"""A PostgreSQL and a Valkey of a run's own: durable, and made to be killed, stopped and started on their data."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis

from ledger.errors import Unfit
from patchyard.local.account import server_account
from patchyard.local.ports import is_free
from patchyard.local.postgres import PostgresServer
from patchyard.local.programs import postgres_programs, valkey_program
from patchyard.local.valkey import ValkeyServer

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 120.0
_STARTS = 3
_PORTS = range(20_000, 32_000)
_libc = ctypes.CDLL(None, use_errno=True)


def own_port() -> int:
    """A free port below those that the kernel gives to clients (ip_local_port_range, 32768 to 60999 on Linux).

    One of those could be a client's while its server is restarted, even that of a client which tries to reach it.
    """
    while not is_free(port := secrets.choice(_PORTS)):
        pass
    return port


def die_with_us() -> None:
    """For `preexec_fn`: the process is killed when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


@dataclass
class Server:
    """One server process, on a port and on data that outlive it."""

    argv: list[str]
    environment: dict[str, str]
    options: dict[str, Any]
    log: Path
    wait_until_it_answers: Callable[[Callable[[], bool], float], None]
    _process: subprocess.Popen[bytes] | None = None
    _stopped: list[psutil.Process] = field(default_factory=list)

    def start(self) -> None:
        """Returns when it answers. It is tried again when it ends at once, as a supervisor would."""
        for left in reversed(range(_STARTS)):
            process = self._start()
            try:
                self.wait_until_it_answers(lambda: process.poll() is None, _START_SECONDS)  # noqa: B023  (called here)
                return
            except Unfit as error:
                if left == 0 or process.poll() is None:
                    error.add_note(self.log.read_text(errors="replace")[-2_000:])
                    raise

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self.argv,
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=die_with_us,
                **self.options,
            )
        return self._process

    @property
    def is_down(self) -> bool:
        """Whether there is no process of it."""
        return self._process is None or self._process.poll() is not None

    def end(self, number: signal.Signals) -> None:
        """Sends a signal that ends it, and waits until it and its children are gone."""
        if self._process is None:
            return
        self.resume()
        children = self._children()
        self._process.send_signal(number)
        self._process.wait(60)
        psutil.wait_procs(children, timeout=60)
        self._process = None

    def pause(self) -> None:
        """Stops it and all of its children: connections stay open, and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # the parent first, so that no child is forked meanwhile
        self._stopped = [psutil.Process(self._process.pid), *self._children()]
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Lets it go on."""
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self._stopped = []

    def _children(self) -> list[psutil.Process]:
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []


@dataclass
class Postgres:
    """The ledger's server. A restart is an immediate one: no shutdown checkpoint, recovery at the start."""

    server: Server
    url: str

    @classmethod
    def made_in(cls, folder: Path) -> Postgres:
        """A new cluster, running, with an empty database."""
        account = server_account()
        described = PostgresServer(
            programs=postgres_programs(account),
            folder=account.make_folder(folder / "postgres"),
            account=account,
            port=own_port(),
            password=secrets.token_hex(16),
        )
        described.initialize()
        server = Server(
            described.argv(),
            described.environment(),
            account.popen_options(),
            folder / "postgres.log",
            described.wait_until_it_answers,
        )
        server.start()
        described.create_database()
        return cls(server, described.url())

    def restart(self) -> None:
        self.server.end(signal.SIGQUIT)
        self.server.start()

    def close(self) -> None:
        self.server.end(signal.SIGINT)


@dataclass
class Valkey:
    """The broker's server, with an append-only file."""

    server: Server
    url: str
    client: redis.Redis

    @classmethod
    def made_in(cls, folder: Path) -> Valkey:
        """A new server, running and empty."""
        account = server_account()
        described = ValkeyServer(
            program=valkey_program(account),
            folder=account.make_folder(folder / "valkey"),
            account=account,
            port=own_port(),
            password=secrets.token_hex(16),
        )
        described.initialize()
        server = Server(
            described.argv(),
            described.environment(),
            account.popen_options(),
            folder / "valkey.log",
            described.wait_until_it_answers,
        )
        server.start()
        return cls(server, described.url(), redis.Redis.from_url(described.url(), socket_timeout=10))

    def restart(self) -> None:
        """Killed, and started on what it had written."""
        self.server.end(signal.SIGKILL)
        self.server.start()

    def wipe(self) -> None:
        """Everything in it is gone: queues, unacknowledged messages, the bell."""
        self.client.flushall()

    def close(self) -> None:
        self.client.close()
        self.server.end(signal.SIGTERM)
