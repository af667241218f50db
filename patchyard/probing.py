"""Probes asked for by a person: on the engine of this machine's stack, or on the one that a stack would have.

It is the probe that a worker makes before an image's first use, and what it finds counts for the workers too, if there
is a ledger to write it in: a failure refuses the image, and a success allows it. The sandboxes of such a probe belong
to no job, so no ledger knows them; one that a killed probe has left is found by its name, which holds the process.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from typing import Any

import psutil

from ledger.connect import Database
from ledger.errors import Permanent, Unfit
from ledger.probes import record_probe
from ledger.records.probe import Check, Probe, Subject
from patchyard.backends import REMEDY, connect
from patchyard.batchfile.finder import MachineFinder
from patchyard.batchfile.lookups import FoundImage
from patchyard.image_shelf import Say, bring_images, engine_at_hand
from patchyard.local.fitness import SANDBOX_IMAGE
from patchyard.local.services import worker_name
from patchyard.local.stack import planned_and_living
from patchyard.settings import Settings
from runners.sandbox.backend import Backend, SandboxState
from runners.sandbox.probe import Errand, probe, subject_of
from runners.sandbox.spec import SandboxSpec

_NAME = "patchyard-probe"
_NO_JOB = _NO_FENCE = 0


class ProbesOnly(Permanent):
    """This connection to the engine is for probes only."""


class _ProbesRegistry:
    """A registry for sandboxes of probes, which refuses every other."""

    def register(self, spec: SandboxSpec) -> str:
        if spec.purpose != "probe":
            raise ProbesOnly
        return f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        """Nothing is kept: who asked is waiting, and sees the proof of the end."""


@dataclass(frozen=True)
class Probed:
    """What a probe found, and what about."""

    image: FoundImage
    subject: Subject
    checks: list[Check]
    took_ms: int

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.ok]

    def keep(self, db: Database, settings: Settings) -> Probe:
        """Write it down for the workers. Raises LedgerUnavailable, and BadInput for a login that may not."""
        return record_probe(
            db, self.subject, self.checks, took_ms=self.took_ms, lasts_seconds=settings.probe_ttl_seconds
        )


def probe_now(settings: Settings, reference: str | None, runtime: str | None, say: Say) -> Probed:
    """Probes an image by its name or digest, the default one if None.

    Raises Unfit where there is no engine, BadInput for an image or a runtime that is not there, EngineUnavailable,
    SandboxLost, ImageUnavailable.
    """
    image = MachineFinder(settings.home, settings.images_lock).image(reference or SANDBOX_IMAGE)
    address = engine_at_hand(settings)
    if address is None:
        raise Unfit("nothing here could run a sandbox", remedy=f"{REMEDY}; or start an engine with `patchyard up`")
    bring_images(settings, address, [image], say)
    backend = connect(address, _ProbesRegistry(), runtime or _runtime_of_stack(settings))
    try:
        _clear(backend)
        began = time.monotonic()
        checks = probe(backend, Errand(image.digest, _NO_JOB, os.getpid(), _NO_FENCE))
        took_ms = round(1000 * (time.monotonic() - began))
        return Probed(image, subject_of(backend.facts(), image.digest), checks, took_ms)
    finally:
        backend.close()


def _runtime_of_stack(settings: Settings) -> str | None:
    """The runtime that the workers of a running stack use, else the settings'."""
    plan, _, living = planned_and_living(settings)
    if plan is not None and living:
        for service in plan.services:
            if service.name == worker_name("sandbox"):
                return service.environment.get("PATCHYARD_SANDBOX_RUNTIME")
    return settings.sandbox_runtime


def _clear(backend: Backend) -> None:
    """Destroy what probes have left whose process is gone."""
    for found in backend.find():
        of_probe = found.name.startswith(f"{_NAME}-") and (found.job_id, found.fence) == (_NO_JOB, _NO_FENCE)
        if of_probe and not psutil.pid_exists(found.step_id):
            backend.destroy(found)
