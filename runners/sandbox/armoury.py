"""Armed sandboxes: one ahead for each job that will soon need one, as many as there is demand, memory and room for.

When a step of a job has ended, the next one probably comes soon, and to the same worker, over files that are nearly the
same. So one is started with the files as they are now, and when the command comes it is told what has changed. It costs
nothing but itself when it was in vain: in time, or as soon as its job has ended, it is removed with the proof of that.
A job for which one was in vain gets no other before it has run a command again.

The ledger knows of each before it is created, until when it may wait, and whose command it got. Whatever is refused or
goes wrong on the way, the command is simply run in a sandbox that was not armed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ledger.errors import PatchyardError
from runners.sandbox.backend import Armed, Backend, NotArmed
from runners.sandbox.spec import SandboxPlace, SandboxSpec

IDLE_SECONDS = 60.0
"""How long one waits for its command."""
SPARE_SECONDS = 15.0
"""How much longer the sandbox itself waits: whoever started it is to be the one who ends it."""
LOOK_SECONDS = 1.0
_LEFT_FREE = 0.1
_MOST_REMEMBERED = 10_000

Files = Callable[[], Iterable[bytes]]


@dataclass
class Ready:
    """One that waits, or will: the tree whose files are in it, and `made` when it is so far."""

    sandbox: Armed
    place: SandboxPlace
    tree: str
    made: Future[None]
    since: float = field(default_factory=time.monotonic)


def available_bytes() -> int:
    """The memory of this machine that could be had now; see proc(5)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Armoury:
    """At most `slots` armed sandboxes of one backend, one a job. Safe to use from many threads.

    `renew` says of the named that they still wait; those that nobody needs any more come back, since their job has
    ended or is to. It is called every second.
    """

    def __init__(
        self,
        backend: Backend,
        slots: int,
        renew: Callable[[Sequence[str]], set[str]],
        *,
        idle_seconds: float = IDLE_SECONDS,
        memory: Callable[[], int] = available_bytes,
    ) -> None:
        self._backend, self._slots, self._renew = backend, slots, renew
        self._idle_seconds, self._memory = idle_seconds, memory
        self._by_job: dict[int, Ready] = {}
        self._in_vain: dict[int, None] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._makers = ThreadPoolExecutor(max(1, slots), thread_name_prefix="arm-sandbox")
        self._keeper = threading.Thread(target=self._keep, name="armoury", daemon=True)
        self._keeper.start()

    def arm(self, place: SandboxPlace, tree: str, files: Files) -> bool:
        """Start one for the job of `place`, whose step's lease is held, if there is reason and room; whether it was.

        Nothing that goes wrong with it reaches the caller: LeaseLost shows again when the step is completed.
        """
        place = place.model_copy(update={"armed_seconds": self._idle_seconds + SPARE_SECONDS})
        with self._lock:
            if not self._wants(place):
                return False
            try:
                sandbox = self._backend.arm(place)
            except PatchyardError:
                return False
            made = self._makers.submit(lambda: sandbox.arm(files(), self._closed))
            self._by_job[place.job_id] = Ready(sandbox, place, tree, made)
        return True

    def take(self, spec: SandboxSpec) -> Ready | None:
        """The one that waits for this command, to be fired by the caller; None if there is none."""
        with self._lock:
            ready = self._by_job.pop(spec.job_id, None)
            self._in_vain.pop(spec.job_id, None)
        if ready is None:
            return None
        if not ready.place.can_serve(spec) or ready.made.cancel():
            self._discard(ready)
            return None
        try:
            ready.made.result()
        except PatchyardError:
            return None
        return ready

    def has(self, name: str) -> bool:
        """Whether the sandbox of this name waits here."""
        with self._lock:
            return any(ready.sandbox.name == name for ready in self._by_job.values())

    def forget(self, job_id: int) -> None:
        """This job needs none any more."""
        with self._lock:
            ready = self._by_job.pop(job_id, None)
            self._in_vain.pop(job_id, None)
        if ready is not None:
            self._discard(ready)

    def close(self) -> None:
        """Remove all that wait, with the proof of their death, and start no more."""
        self._closed.set()
        self._keeper.join()
        with self._lock:
            left = list(self._by_job.values())
            self._by_job.clear()
        for ready in left:
            self._discard(ready)
        self._makers.shutdown()

    def _wants(self, place: SandboxPlace) -> bool:
        if place.network is not None:  # a way out is opened for one command, and for none that may come
            return False
        if self._closed.is_set() or place.job_id in self._by_job or place.job_id in self._in_vain:
            return False
        if len(self._by_job) >= self._slots:
            return False
        # What waits takes little; what it may take when its command comes has to be there.
        free = self._memory()
        return free * (1 - _LEFT_FREE) >= place.limits.memory_bytes * (len(self._by_job) + 1)

    def _keep(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._lock:
                waiting = {ready.sandbox.name: ready for ready in self._by_job.values()}
            if not waiting:
                continue
            try:
                over = self._renew(list(waiting))
            except PatchyardError:
                over = set()
            late = {name for name, ready in waiting.items() if time.monotonic() - ready.since > self._idle_seconds}
            for name in over | late:
                self._give_up(waiting[name], in_vain=name not in over)

    def _give_up(self, ready: Ready, *, in_vain: bool) -> None:
        job = ready.place.job_id
        with self._lock:
            if self._by_job.get(job) is not ready:
                return
            del self._by_job[job]
            if in_vain:
                self._in_vain[job] = None
                while len(self._in_vain) > _MOST_REMEMBERED:
                    del self._in_vain[next(iter(self._in_vain))]
        self._discard(ready)

    def _discard(self, ready: Ready) -> None:
        """What fails here is found in the ledger when its time is over, by the reaper."""
        try:
            if not ready.made.cancel():
                ready.made.result()
            ready.sandbox.discard()
        except PatchyardError:
            return


__all__ = ["Armoury", "NotArmed", "Ready"]
