"""The gate before every sandbox of a job: no command runs in one whose isolation is not proved.

Proof is a probe in the ledger that found nothing amiss, about this image, runtime and host, and that has not run out.
Where there is none, the worker that needs it probes, once among all threads and processes, and under the lease of the
step that waits for it: what dies in the middle is found and removed like any sandbox of that step. The ledger asks for
the same proof again when a sandbox is registered, so going around this gate leads nowhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ledger.connect import Database
from ledger.errors import IsolationUnverified
from ledger.events import append_events
from ledger.probes import KnownProbe, find_valid_probe, probing, record_probe
from ledger.records.probe import Subject
from ledger.records.step import Claim, Event
from runners.sandbox.backend import Backend
from runners.sandbox.probe import Errand, ProbeStopped, probe, subject_of

PROBE_TTL_SECONDS = 86_400.0
_SPARE_SECONDS = 60.0
"""A probe that runs out sooner is made anew: what it allows has yet to be registered."""
_TURN_SECONDS = 0.2
_SHOWN = 6


@dataclass(frozen=True)
class Isolation:
    """One for each worker process. `ttl_seconds` is how long a good probe counts."""

    ttl_seconds: float = PROBE_TTL_SECONDS
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def require(self, db: Database, backend: Backend, claim: Claim, cancelled: threading.Event) -> int:
        """The id of the probe that allows sandboxes of the job's image; made now, if there is none that counts.

        Raises IsolationUnverified, ProbeStopped, LeaseLost, LedgerUnavailable, and what the backend does.
        """
        subject = subject_of(backend.facts(), claim.job.image)
        while True:
            if (known := self._known(db, subject)) is not None:
                return _allowed(known, subject)
            with self._turn(db, subject) as mine:
                if mine:
                    known = self._known(db, subject) or self._probe(db, backend, claim, subject, cancelled)
                    return _allowed(known, subject)
            if cancelled.wait(_TURN_SECONDS):
                raise ProbeStopped

    def proved(self, db: Database, backend: Backend, image: str) -> int | None:
        """The id of the probe that allows sandboxes of `image`, if it is known that there is one.

        Raises LedgerUnavailable, and what the backend does.
        """
        known = self._known(db, subject_of(backend.facts(), image))
        return known.id if known is not None and known.ok else None

    def _known(self, db: Database, subject: Subject) -> KnownProbe | None:
        return find_valid_probe(db, subject, spare_seconds=min(_SPARE_SECONDS, self.ttl_seconds / 2))

    @contextmanager
    def _turn(self, db: Database, subject: Subject) -> Iterator[bool]:
        """Whether it is this thread's turn to probe: one thread of this process, and one process, at a time."""
        if not self._one_at_a_time.acquire(timeout=_TURN_SECONDS):
            yield False
            return
        try:
            with probing(db, subject) as mine:
                yield mine
        finally:
            self._one_at_a_time.release()

    def _probe(
        self, db: Database, backend: Backend, claim: Claim, subject: Subject, cancelled: threading.Event
    ) -> KnownProbe:
        began = time.monotonic()
        errand = Errand(claim.job.image, claim.job_id, claim.step_id, claim.fence)
        checks = probe(backend, errand, cancelled)
        took_ms = round(1000 * (time.monotonic() - began))
        made = record_probe(db, subject, checks, took_ms=took_ms, lasts_seconds=self.ttl_seconds)
        body = {"probe": made.id, "ok": made.ok, "checks": len(checks), "failed": list(made.failed), "ms": took_ms}
        append_events(db, claim, [Event(kind="probe", body=body)])
        return KnownProbe(id=made.id, ok=made.ok, failed=made.failed)


def _allowed(known: KnownProbe, subject: Subject) -> int:
    if known.ok:
        return known.id
    shown = ", ".join(known.failed[:_SHOWN])
    more = f" and {len(known.failed) - _SHOWN} more" if len(known.failed) > _SHOWN else ""
    raise IsolationUnverified(
        f"probe {known.id} of {subject.image[:19]}… on {subject.backend}/{subject.runtime} failed: {shown}{more}; "
        "`patchyard probe` shows the evidence"
    )
