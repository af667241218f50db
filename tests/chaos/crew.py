"""The processes of a run, and the supervisor that starts again whatever ended.

A member is one `patchyard` command. It may be killed, stopped and told to die at a crash point; what it does by itself
(ending, logging an error) is kept as a finding, since a worker has to outlive everything that is not done to itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.servers import die_with_us

ROOT = Path(__file__).resolve().parents[2]
TAG = "PATCHYARD_CHAOS_RUN"
READY = {"worker": ("worker_ready",), "scheduler": ("lead_taken", "waits_for_the_lead")}
_LOOK_SECONDS = 0.05
_EXPECTED = ("consumer: Cannot connect to",)
"""What Celery calls an error and we a fault of our own making: the broker is away."""


def until(condition: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Waits for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {seconds:.0f} s: {what}"
        time.sleep(0.03)


@dataclass
class Member:
    """One place of the crew, and the process that fills it now. `once` is for its next process only.

    `killed` are processes that we killed, `armed` those that were to die at a crash point, `crashes` says how many did.
    A worker's successor has its name, and so ends the leases that it left; `renamed`, it has another one, as on
    another host, and they have to run out.
    """

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    once: dict[str, str] = field(default_factory=dict)
    wanted: bool = True
    renamed: bool = False
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path(os.devnull)
    starts: int = 0
    stopped: bool = False
    deaths: list[int] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    armed: set[int] = field(default_factory=set)
    crashes: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether the process that fills the place now takes work."""
        return self.process is not None and any(map(self.says, READY[self.arguments[0]]))

    def command(self) -> list[str]:
        """The arguments of its next process."""
        named = ["--name", f"{self.name}-{self.starts}" if self.renamed else self.name]
        return [*self.arguments, *(named if self.arguments[0] == "worker" else ())]

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the present process has logged; a line of somebody else's is {"event": the line}."""
        return _lines(self.log)

    def has_stopped(self) -> bool:
        """Whether its process was stopped, by us or by itself."""
        with suppress(psutil.NoSuchProcess, AttributeError):  # the supervisor may bury it meanwhile
            return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED  # type: ignore[union-attr]
        return False

    def says(self, event: str) -> bool:
        """Whether its process has logged this."""
        return any(line.get("event") == event for line in self.lines())


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value
                continue
        yield {"event": line, "level": "error"}


class Crew:
    """Keeps its members running until `close`. `common` are variables that all of them get."""

    def __init__(self, folder: Path, run: str, common: dict[str, str]) -> None:
        self._folder, self.run = folder, run
        self._common = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            TAG: run,
            **common,
        }
        self.members: dict[str, Member] = {}
        self.ended_by_themselves: list[str] = []
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()

    def add(self, name: str, *arguments: str, **environment: str) -> Member:
        """A new member, started."""
        member = Member(name, arguments, environment)
        with self._lock:
            self.members[name] = member
        return member

    def ready(self, *names: str, seconds: float = 60.0) -> None:
        """Waits until these members take work; all, when none is named."""
        for name in names or tuple(self.members):
            until(lambda name=name: self.members[name].is_ready, seconds, f"{name} is ready")  # type: ignore[misc]

    def kill(self, name: str) -> None:
        """SIGKILL; the supervisor starts it again."""
        with self._lock:
            self._signal(self.members[name], signal.SIGKILL)

    def stop(self, name: str) -> None:
        """SIGSTOP: it holds what it holds, and does nothing."""
        with self._lock:
            member = self.members[name]
            self._signal(member, signal.SIGSTOP)
            member.stopped = True

    def go_on(self, name: str) -> None:
        """SIGCONT."""
        with self._lock:
            member = self.members[name]
            self._signal(member, signal.SIGCONT)
            member.stopped = False

    def remove(self, name: str) -> None:
        """Kills a member for good."""
        with self._lock:
            member = self.members.pop(name)
            member.wanted = False
            self._signal(member, signal.SIGKILL)
            if member.process is not None:
                member.process.wait()
                self._bury(member)

    def renew(self, once: Mapping[str, dict[str, str]], *, renamed: bool = False) -> None:
        """Kills the named members; the next process of each has these variables. Returns when all are ready."""
        with self._lock:
            starts = {name: self.members[name].starts + 1 for name in once}
            for name, variables in once.items():
                member = self.members[name]
                member.once, member.renamed = variables, renamed
                self._signal(member, signal.SIGKILL)
        for name, number in starts.items():
            member = self.members[name]
            until(lambda m=member, n=number: m.starts >= n and m.is_ready, what=f"{name} is started anew")  # type: ignore[misc]
            assert member.starts == number, f"{name} ended at its start: {self.findings()}"

    def close(self) -> None:
        """Kills everybody."""
        self._closed.set()
        self._thread.join()
        for name in list(self.members):
            self.remove(name)

    def findings(self) -> list[str]:
        """Ends that nobody asked for, and whatever any process of this crew has logged as an error."""
        logged = [
            f"{log.name}: {line.get('event')}: {line.get('exception') or line.get('why') or ''}"
            for log in sorted(self._folder.glob("*.log"))
            for line in _lines(log)
            if line.get("level") in ("error", "critical") and not str(line.get("event")).startswith(_EXPECTED)
        ]
        return self.ended_by_themselves + logged

    # -- the supervisor ------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            with self._lock:
                for member in self.members.values():
                    if member.process is not None and member.process.poll() is not None:
                        self._bury(member)
                    if member.process is None and member.wanted:
                        self._start(member)

    def _start(self, member: Member) -> None:
        member.starts += 1
        member.stopped = False
        member.log = self._folder / f"{member.name}-{member.starts}.log"
        once, member.once = member.once, {}
        with member.log.open("wb") as out:
            member.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.process", *member.command()],
                env=self._common | member.environment | once,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=die_with_us,
            )
        if "PATCHYARD_CRASH" in once:
            member.armed.add(member.process.pid)

    def _bury(self, member: Member) -> None:
        process, member.process = member.process, None
        if process is None:
            return
        member.deaths.append(process.returncode)
        if process.pid in member.killed:
            return
        if process.pid in member.armed and process.returncode == -signal.SIGKILL:
            member.crashes += 1
        else:
            self.ended_by_themselves.append(f"{member.log.name}: ended by itself with {process.returncode}")

    def _signal(self, member: Member, number: signal.Signals) -> None:
        if member.process is None or member.process.poll() is not None:
            return
        if number == signal.SIGKILL:
            member.killed.add(member.process.pid)
        member.process.send_signal(number)
