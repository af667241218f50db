"""An embedded Valkey as the broker: its configuration file, its command line, and whether it answers.

It listens on loopback only, with a random password, keeps an append-only file (synced every second) and never evicts.
The ledger is the truth, so what a crash may lose here is a hint that the sweep gives again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis

from ledger.errors import Unfit
from patchyard.local.account import Account
from patchyard.local.ports import LOOPBACK

STOP_SIGNAL = signal.SIGTERM


def broker_url(password: str, port: int, database: int = 0) -> str:
    """The URL of an embedded broker."""
    return f"redis://:{password}@{LOOPBACK}:{port}/{database}"


def accepts(password: str, port: int) -> bool:
    """Whether a server on `port` takes `password` and has loaded its file."""
    client = redis.Redis(host=LOOPBACK, port=port, password=password, socket_timeout=3, socket_connect_timeout=3)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


@dataclass(frozen=True)
class ValkeyServer:
    """One server that keeps its files in `folder`."""

    program: Path
    folder: Path
    account: Account
    port: int
    password: str
    durable: bool = True

    @property
    def configuration(self) -> Path:
        return self.folder / "valkey.conf"

    def url(self, database: int = 0) -> str:
        return broker_url(self.password, self.port, database)

    def argv(self) -> list[str]:
        """The foreground command; it logs on stdout. The password is in the file, not here."""
        return [str(self.program), str(self.configuration), "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {"LC_ALL": "C", "PATH": "/usr/bin:/bin", "TZ": "UTC"}

    def initialize(self) -> None:
        """Write the configuration file (mode 0600)."""
        settings = {
            "bind": LOOPBACK,
            "protected-mode": "yes",
            "requirepass": self.password,
            "daemonize": "no",
            # A title is written over the environment, which is how the stack's processes are known.
            "set-proc-title": "no",
            "logfile": '""',
            "dir": f'"{self.folder}"',
            "save": '""',
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "tcp-keepalive": "60",
        }
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        self.account.write_file(self.configuration, text)

    def answers(self) -> bool:
        """Whether the server takes our password and has loaded its file."""
        return accepts(self.password, self.port)

    def wait_until_it_answers(self, alive: Callable[[], bool], timeout_seconds: float = 60) -> None:
        """Return when it answers; `Unfit` when it died or the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while not self.answers():
            if not alive():
                raise Unfit("Valkey ended while it started")
            if time.monotonic() > deadline:
                raise Unfit(f"Valkey did not answer within {timeout_seconds:.0f} s")
            time.sleep(0.05)
