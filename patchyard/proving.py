"""The backend that `auto` comes to when isolation is proved before anything is served: the fastest whose probe passes.

A runtime by which a simple sandbox comes out right may still fail the whole probe. Where the usual image is at hand,
the probe is made when the choice is, unless the ledger knows its outcome; it is the one that the first job would have
waited for. A choice only: what a sandbox is allowed by is the ledger's business, whatever was chosen here.
"""

from __future__ import annotations

from ledger.connect import Database
from ledger.errors import DiskFull, Temporary
from ledger.probes import find_valid_probe
from patchyard.backends import Chosen, ImagesOnly, address_of, choose_backend, connect, is_free
from patchyard.batchfile.lookups import FoundImage
from patchyard.image_shelf import Say, layouts_of, locked_images
from patchyard.local.fitness import SANDBOX_IMAGE
from patchyard.probing import failure_of, probe_on
from patchyard.settings import Settings
from runners.sandbox.backend import ImageUnavailable
from runners.sandbox.probe import subject_of

_SPARE_SECONDS = 60.0


def choose_proven(settings: Settings, db: Database, say: Say) -> Chosen:
    """As `choose_backend`; where the choice is ours, those without an engine that fail their probe are passed over.

    Raises Unfit, BadInput, LedgerUnavailable, NoRoom.
    """
    refuted: dict[str, str] = {}
    while True:
        chosen = choose_backend(settings, refuted=refuted)
        if not is_free(settings) or chosen.backend == "docker":
            return chosen
        if not (why := _refutation(settings, chosen, db, say)):
            return chosen
        say(f"sandboxes: not {chosen.name}, {why}")
        refuted[chosen.name] = why


def _refutation(settings: Settings, chosen: Chosen, db: Database, say: Say) -> str:
    """Why sandboxes by this backend are not what they should be; empty when they are, or when that cannot be told."""
    entry = locked_images(settings).get(SANDBOX_IMAGE)
    if entry is None or layouts_of(settings).find(entry.digest) is None:
        return ""
    address = address_of(chosen, settings)
    backend = connect(address, ImagesOnly(), chosen.runtime)
    try:
        subject = subject_of(backend.facts(), entry.digest)
    finally:
        backend.close()
    known = find_valid_probe(db, subject, spare_seconds=min(_SPARE_SECONDS, settings.probe_ttl_seconds / 2))
    if known is not None:
        return "" if known.ok else f"its probe failed: {', '.join(known.failed)}"
    try:
        probed = probe_on(settings, address, FoundImage(entry.digest, SANDBOX_IMAGE), chosen.runtime, say)
    except ImageUnavailable:
        return ""  # the image is wrong, not the backend
    except DiskFull:
        raise
    except Temporary as failed:
        return f"its probe could not be made: {failed.message}"
    probed.keep(db, settings)
    return failure_of(probed.checks) if probed.failed else ""
