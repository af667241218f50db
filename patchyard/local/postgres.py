"""An embedded PostgreSQL 18: its cluster, its command line, and whether it answers.

It listens on loopback only, has no Unix socket, and knows one role with a random password (scram-sha-256). It is tuned
for a queue of short transactions on a machine that has other work: fsync on, small buffers, no parallel plans.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import Unfit
from patchyard.local.account import Account
from patchyard.local.ports import LOOPBACK

ROLE = "patchyard"
DATABASE = "patchyard"
MAJOR = "18"
STOP_SIGNAL = signal.SIGINT  # a fast shutdown: open transactions are rolled back
_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin", "TZ": "UTC"}
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "96MB",
    "huge_pages": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}


def database_url(password: str, port: int, database: str = DATABASE) -> str:
    """The URL of a database of an embedded server."""
    return f"postgresql://{ROLE}:{password}@{LOOPBACK}:{port}/{database}"


def accepts(programs: Path, port: int) -> bool:
    """Whether a server on `port` accepts connections."""
    argv = [str(programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(port), "-t", "3"]
    return subprocess.run(argv, env=_ENVIRONMENT, check=False).returncode == 0


@dataclass(frozen=True)
class PostgresServer:
    """One cluster in `folder`/data. `durable=False` gives up fsync, for databases that nobody needs tomorrow."""

    programs: Path
    folder: Path
    account: Account
    port: int
    password: str
    durable: bool = True

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = DATABASE) -> str:
        return database_url(self.password, self.port, database)

    def argv(self) -> list[str]:
        """The foreground command; it logs on stderr."""
        settings = dict(_SETTINGS, port=str(self.port))
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.data), *options]

    def environment(self) -> dict[str, str]:
        return dict(_ENVIRONMENT)

    def initialize(self) -> bool:
        """Make the cluster unless it exists; True when it was made.

        It is made beside and renamed, so a killed initdb leaves nothing that looks like a cluster. Raises `Unfit` for
        a cluster of another major version.
        """
        version = self.data / "PG_VERSION"
        if version.exists():
            if version.read_text().strip() != MAJOR:
                raise Unfit(
                    f"{self.data} is a cluster of PostgreSQL {version.read_text().strip()}, not {MAJOR}",
                    remedy="move it away to start afresh, or dump it with that version first",
                )
            return False
        unfinished = self.folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        password_file = self.account.write_file(self.folder / "password", self.password + "\n")
        try:
            argv = [str(self.programs / "initdb"), "-D", str(unfinished), "-U", ROLE, "--encoding=UTF8"]
            argv += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--locale-provider=builtin"]
            argv += ["--locale=C", "--builtin-locale=C.UTF-8", "--data-checksums"]
            argv += [] if self.durable else ["--no-sync"]
            self.account.run(argv, env=_ENVIRONMENT, timeout_seconds=120)
        finally:
            password_file.unlink(missing_ok=True)
        unfinished.rename(self.data)
        return True

    def answers(self) -> bool:
        """Whether the server accepts connections (it may still be replaying its log after a crash)."""
        return accepts(self.programs, self.port)

    def wait_until_it_answers(self, alive: Callable[[], bool], timeout_seconds: float = 60) -> None:
        """Return when connections are accepted; `Unfit` when it died or the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while not self.answers():
            if not alive():
                raise Unfit("PostgreSQL ended while it started")
            if time.monotonic() > deadline:
                raise Unfit(f"PostgreSQL did not answer within {timeout_seconds:.0f} s")
            time.sleep(0.05)

    def create_database(self, name: str = DATABASE) -> None:
        """Create the database unless it exists; this also proves that the password is right."""
        argv = [str(self.programs / "createdb"), "-w", "-h", LOOPBACK, "-p", str(self.port), "-U", ROLE, name]
        try:
            self.account.run(argv, env=_ENVIRONMENT | {"PGPASSWORD": self.password}, timeout_seconds=60)
        except Unfit as error:
            if "already exists" not in error.message:
                raise
