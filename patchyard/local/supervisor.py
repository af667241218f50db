"""Keeps the processes of the local stack running: `python -m patchyard.local.supervisor HOME`.

It starts what the plan says, restarts what ends, and stops everything, workers first, when it is told to (SIGTERM), or
when the plan is gone because somebody removed the folder. SIGHUP makes it read the plan again.

Why not a library: `supervisor` 4.3 was tried. It reads its children's output through pipes, so when it is killed they
die at their next line; the next supervisord knows nothing of those that live on and starts each a second time; and it
gives a program up after a few quick exits. Here children own their log files, nothing is given up but only tried less
often, and when the supervisor dies its standby takes over and adopts what it finds.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchyard.local.logs import rotate
from patchyard.local.plan import Plan, RunFolder, Service, ServiceStatus, Status
from patchyard.local.processes import (
    SERVICE_TAG,
    STACK_TAG,
    SUPERVISOR,
    stack_processes,
    tags,
    wait_for_exit,
)
from patchyard.local.standby import standby_service

LONGEST_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 30.0
_TICK_SECONDS = 2.0


@dataclass
class Child:
    """A running process of a service; `process` is None for an adopted one, whose status nobody can ask for."""

    pid: int
    pidfd: int
    fingerprint: str
    since: float
    started_at: float
    process: subprocess.Popen[bytes] | None


@dataclass
class Slot:
    """A service's place: its process, if any, and when the next one may be started (monotonic seconds)."""

    service: Service
    child: Child | None = None
    restarts: int = 0
    failures: int = 0
    not_before: float = 0.0
    last_exit: str = ""


class Supervisor:
    """The one supervisor of the stack in `home`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._run = RunFolder(home / "run")
        self._slots: dict[str, Slot] = {}
        self._generation = 0
        self._selector = selectors.DefaultSelector()
        self._received: set[int] = set()

    def run(self) -> None:
        """Until SIGTERM, SIGINT or the plan's disappearance."""
        self._listen()
        self._follow(self._run.read_plan() or Plan(0), adopt=True)
        while not self._received & {signal.SIGTERM, signal.SIGINT} and self._run.plan.exists():
            if signal.SIGHUP in self._received:
                self._received.discard(signal.SIGHUP)
                self._follow(self._run.read_plan() or Plan(self._generation, self._services()))
            self._start_what_is_due()
            for key, _ in self._selector.select(self._pause()):
                if isinstance(key.data, Slot):
                    self._has_ended(key.data)
            for slot in self._slots.values():
                rotate(Path(slot.service.log))
        self._stop(self._slots.values())

    def _listen(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda received, _frame: self._received.add(received))
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._selector.register(read_end, selectors.EVENT_READ, None)
        self._wakeups = read_end

    def _services(self) -> tuple[Service, ...]:
        return tuple(slot.service for slot in self._slots.values())

    def _follow(self, plan: Plan, *, adopt: bool = False) -> None:
        """Make the slots those of `plan`: what is not in it or has changed is stopped, the rest is left alone."""
        if adopt:
            self._adopt(plan)
        wanted = {service.name: service for service in (*plan.services, standby_service(self._home))}
        outdated = []
        for name, slot in list(self._slots.items()):
            service = wanted.get(name)
            if service is None or (slot.child and slot.child.fingerprint != service.fingerprint()):
                outdated.append(slot)
            if service is None:
                del self._slots[name]
        self._stop(outdated)
        for name, service in wanted.items():
            slot = self._slots.setdefault(name, Slot(service))
            slot.service, slot.not_before, slot.failures = service, 0.0, 0
        self._generation = plan.generation
        self._start_what_is_due()
        self._write_status()

    def _adopt(self, plan: Plan) -> None:
        """Take over what an earlier supervisor started, whether or not it came to write that down."""
        known = self._run.read_status()
        living = stack_processes(self._home)
        names = {service.name: service for service in (*plan.services, standby_service(self._home))}
        for process in living:
            service = names.get(process.service) or _unplanned(process.service)
            if process.service in {SUPERVISOR, *self._slots} or not process.leads_as(service.argv):
                continue
            was = known.services.get(process.service) if known else None
            if was is None or was.pid != process.pid:
                was = ServiceStatus(process.pid, "", 0, 0, time.time(), "")
            try:
                pidfd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            # Unknown to the status: started in the supervisor's last moment, so by the plan that stands.
            fingerprint = was.fingerprint or service.fingerprint()
            child = Child(process.pid, pidfd, fingerprint, time.monotonic(), was.started_at, None)
            slot = Slot(service, child, was.restarts, last_exit=was.last_exit)
            self._slots[process.service] = slot
            self._selector.register(pidfd, selectors.EVENT_READ, slot)
            self._say(f"adopted {process.service} with pid {process.pid}")
        pids = {process.pid for process in living}
        for process in living:
            if process.service not in self._slots and process.group not in pids:
                self._say(f"killing pid {process.pid}, left behind by {process.service}")
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        due = [slot for slot in self._slots.values() if slot.child is None and slot.not_before <= now]
        for slot in due:
            self._start(slot)
        if due:
            self._write_status()

    def _start(self, slot: Slot) -> None:
        service = slot.service
        if service.ready_file:
            Path(service.ready_file).unlink(missing_ok=True)
        try:
            with open(os.open(service.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640), "ab") as log:
                process = subprocess.Popen(
                    service.argv,
                    env=service.environment | tags(self._home, service.name),
                    cwd=service.working_folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    user=service.uid,
                    group=service.gid,
                    extra_groups=None if service.uid is None else [],
                )
        except OSError as error:
            slot.last_exit = f"could not be started: {error}"
            self._delay(slot, ran_seconds=0)
            return
        pidfd = os.pidfd_open(process.pid)
        slot.child = Child(process.pid, pidfd, service.fingerprint(), time.monotonic(), time.time(), process)
        self._selector.register(pidfd, selectors.EVENT_READ, slot)
        self._say(f"started {service.name} with pid {process.pid}")

    def _has_ended(self, slot: Slot) -> None:
        """Bury a process that ended by itself, with whatever it left behind, and plan the next."""
        child = slot.child
        if child is None:
            return
        self._bury(slot, child)
        self._delay(slot, time.monotonic() - child.since)
        slot.restarts += 1
        self._say(f"{slot.service.name} (pid {child.pid}) ended: {slot.last_exit}")
        self._write_status()

    def _bury(self, slot: Slot, child: Child) -> None:
        # Before the pid is given back: its group can't be anybody else's as long as the zombie stands.
        for process in stack_processes(self._home):
            if process.group == child.pid and process.service == slot.service.name:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        slot.last_exit = _ending(child.process.wait()) if child.process else "ended, adopted"
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        slot.child = None

    def _delay(self, slot: Slot, ran_seconds: float) -> None:
        """At once after a long run, then after growing pauses: a crash costs nothing, a crash loop not much."""
        slot.failures = 0 if ran_seconds >= STEADY_SECONDS else slot.failures + 1
        pause = 0.0 if slot.failures <= 1 else 0.25 * 2**slot.failures
        slot.not_before = time.monotonic() + min(LONGEST_PAUSE_SECONDS, pause)

    def _pause(self) -> float:
        now = time.monotonic()
        waiting = [slot.not_before - now for slot in self._slots.values() if slot.child is None]
        with suppress(BlockingIOError):
            while os.read(self._wakeups, 512):
                pass
        return 0.0 if self._received else max(0.0, min([_TICK_SECONDS, *waiting]))

    def _stop(self, slots: Iterable[Slot]) -> None:
        """Stop `slots`, stage by stage from the highest, each stage at once; afterwards they are dead."""
        running = [slot for slot in slots if slot.child]
        for stage in sorted({slot.service.stage for slot in running}, reverse=True):
            together = [(slot, slot.child) for slot in running if slot.service.stage == stage and slot.child]
            for slot, child in together:
                self._say(f"stopping {slot.service.name}")
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, slot.service.stop_signal)
            asked_at = time.monotonic()
            for slot, child in together:
                if not wait_for_exit(child.pidfd, asked_at + slot.service.stop_seconds - time.monotonic()):
                    self._say(f"killing {slot.service.name}, which did not end in {slot.service.stop_seconds:.0f} s")
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
                    wait_for_exit(child.pidfd, 10)
                self._bury(slot, child)

    def _write_status(self) -> None:
        services = {}
        for name, slot in self._slots.items():
            child = slot.child
            services[name] = ServiceStatus(
                pid=child.pid if child else None,
                fingerprint=child.fingerprint if child else "",
                restarts=slot.restarts,
                failures=slot.failures,
                started_at=child.started_at if child else 0.0,
                last_exit=slot.last_exit,
            )
        with suppress(FileNotFoundError):  # the folder is gone, and with it whoever might have read this
            self._run.write_status(Status(os.getpid(), self._generation, services))

    def _say(self, line: str) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)


def _ending(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _unplanned(name: str) -> Service:
    """Stands for a process that runs and is not in the plan, until it is stopped."""
    return Service(name, (), {}, "/", os.devnull, stage=9, stop_signal=signal.SIGTERM, stop_seconds=10)


def main() -> None:
    """The process: one a stack, which the lock sees to. Ends with status 3 when another one is at work.

    A standby that has become the supervisor hands over the lock that it waited for, as an open descriptor.
    """
    home = Path(sys.argv[1])
    if os.environ.get(STACK_TAG) != str(home) or os.environ.get(SERVICE_TAG) != SUPERVISOR:
        sys.exit("started by `patchyard up` only")
    lock = int(sys.argv[2]) if len(sys.argv) > 2 else os.open(home / "run" / "supervisor.lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, False)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
    Supervisor(home).run()


if __name__ == "__main__":
    main()
