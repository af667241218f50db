"""Probes as the ledger keeps them: what was seen of a subject, until when it counts, and who is looking just now.

The ledger itself refuses a job's sandbox without a valid probe (see `register_sandbox`), so this is not the guard but
what the guard knows. The last probe of a subject is the one that counts, for better or worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg.rows import dict_row

from ledger.connect import CONNECT_SECONDS, Connection, Database, run, translated_errors
from ledger.records.base import Record
from ledger.records.probe import Check, Probe, Subject
from ledger.storable import storable

FAILED_COUNTS_SECONDS = 60.0
"""How long a failed probe is not repeated: a thousand jobs that wait for one bad image cost one probe a minute."""


class KnownProbe(Record):
    """The last word on a subject: `failed` names the checks that failed."""

    id: int
    ok: bool
    failed: tuple[str, ...]


def record_probe(
    db: Database, subject: Subject, checks: Sequence[Check], *, took_ms: int, lasts_seconds: float
) -> Probe:
    """Writes down a probe; a good one counts for `lasts_seconds`, a failed one for a minute at most."""
    row = db.run(
        "record_probe",
        subject=subject.key,
        image=subject.image,
        backend=subject.backend,
        runtime=subject.runtime,
        host=storable(subject.host),
        checks=storable([check.plain() for check in checks]),
        took_ms=took_ms,
        lasts=lasts_seconds,
        lasts_failed=FAILED_COUNTS_SECONDS,
    )[0]
    return Probe.model_validate(db.run("find_probe", id=row["id"])[0])


def find_valid_probe(db: Database, subject: Subject, *, spare_seconds: float = 0.0) -> KnownProbe | None:
    """The last probe of `subject`, if it has not run out; a good one must have `spare_seconds` left."""
    rows = db.run("find_valid_probe", subject=subject.key, spare=spare_seconds)
    return KnownProbe.model_validate(rows[0]) if rows else None


def latest_probes(db: Database, *, image: str | None = None, limit: int = 100) -> list[Probe]:
    """The last probe of each subject, of one image or of all, newest first; those that ran out are among them."""
    return [Probe.model_validate(row) for row in db.run("latest_probes", image=image, amount=limit)]


@contextmanager
def probing(db: Database, subject: Subject) -> Iterator[bool]:
    """The right to probe `subject`, for the length of the block; False if another session has it.

    It is a lock of a session of its own, so it ends with the process that has it. LedgerUnavailable.
    """
    with translated_errors():
        connection: Connection = psycopg.connect(
            db.url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            row_factory=dict_row,
            application_name="patchyard-probe",
            tcp_user_timeout=30_000,
        )
    try:
        with translated_errors():
            run(connection, "end_probing_in_silence")
            mine = bool(run(connection, "try_probing", subject=subject.key)[0]["mine"])
        yield mine
    finally:
        connection.close()
