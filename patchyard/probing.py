"""Probes asked for by a person: on the engine of this machine's stack, or on the one that a stack would have.

It is the probe that a worker makes before an image's first use, and what it finds counts for the workers too, if there
is a ledger to write it in: a failure refuses the image, and a success allows it. The sandboxes of such a probe belong
to no job, so no ledger knows them; one that a killed probe has left is found by its name, which holds the process.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from ledger.connect import Database
from ledger.errors import Permanent, Unfit
from ledger.probes import record_probe
from ledger.records.probe import Check, Probe, Subject
from patchyard.backends import REMEDY, Tried, address_of, choose_backend, connect, is_free, passing_home
from patchyard.batchfile.finder import MachineFinder
from patchyard.batchfile.lookups import FoundImage
from patchyard.image_shelf import Say, bring_images, engine_at_hand, engine_of_stack
from patchyard.local.engine import answers
from patchyard.local.fitness import SANDBOX_IMAGE
from patchyard.local.services import worker_name
from patchyard.local.stack import planned_and_living
from patchyard.settings import Settings
from runners.sandbox.backend import Backend, SandboxState
from runners.sandbox.escapes import package_here, warnings
from runners.sandbox.probe import Errand, probe, subject_of
from runners.sandbox.spec import NetworkRequest, SandboxPlace, SandboxSpec

_NAME = "patchyard-probe"
_NO_JOB = _NO_FENCE = 0
_SHOWN = 6


class ProbesOnly(Permanent):
    """This connection to the engine is for probes only."""


class _ProbesRegistry:
    """A registry for sandboxes of probes, which refuses every other."""

    def register(self, place: SandboxPlace) -> str:
        if place.purpose != "probe":
            raise ProbesOnly
        return f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"

    def bind(self, name: str, spec: SandboxSpec) -> None:
        raise ProbesOnly

    def mark(self, name: str, state: SandboxState, evidence: dict[str, Any]) -> None:
        """Nothing is kept: who asked is waiting, and sees the proof of the end."""

    def note_requests(self, place: SandboxPlace, requests: Sequence[NetworkRequest], left_out: int) -> None:
        raise ProbesOnly


@dataclass(frozen=True)
class Probed:
    """What a probe found, and what about; `before` are those whose failure led to this one, `tried` is what did not
    get as far as a probe, too."""

    image: FoundImage
    subject: Subject
    checks: list[Check]
    took_ms: int
    versions: Mapping[str, str] = field(default_factory=dict)
    before: tuple[Probed, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """Known ways out that the engine's and the runtime's versions may have."""
        here = package_here if self.subject.host["address"].startswith(("unix://", "/")) else None
        return list(warnings(self.versions, here))

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
    """Probes an image by its name or digest, the default one if None, on the engine of the stack or of the settings.

    Where the choice is ours, as it is when a stack is started, the next backend is probed when one fails; those that
    failed go with the result. Raises Unfit where there is no engine, BadInput for an image or a runtime that is not
    there, EngineUnavailable, SandboxLost, ImageUnavailable.
    """
    image = MachineFinder(settings.home, settings.images_lock).image(reference or SANDBOX_IMAGE)
    if runtime is not None or not is_free(settings) or engine_of_stack(settings) is not None:
        return probe_on(settings, _engine(settings), image, runtime or _runtime_of_stack(settings), say)
    refuted: dict[str, str] = {}
    before: list[Probed] = []
    while True:
        with passing_home() as home:
            chosen = choose_backend(settings, home=home, refuted=refuted)
        address = address_of(chosen, settings)
        if chosen.backend == "docker" and not answers(address):
            raise _nothing_here("; ".join(f"{one.name}: {one.why}" for one in chosen.tried))
        probed = probe_on(settings, address, image, chosen.runtime, say)
        probed = replace(probed, before=tuple(before), tried=chosen.tried)
        if not probed.failed or chosen.backend == "docker":
            return probed
        refuted[chosen.name] = failure_of(probed.checks)
        say(f"{chosen.name}: {refuted[chosen.name]}; trying the next")
        before.append(probed)


def failure_of(checks: Iterable[Check]) -> str:
    """What a failed probe comes to, in one line."""
    failed = [check.name for check in checks if not check.ok]
    more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return f"its probe failed: {', '.join(failed[:_SHOWN])}{more}"


def probe_on(settings: Settings, address: str, image: FoundImage, runtime: str | None, say: Say) -> Probed:
    """Probe an image on the engine at `address`, which is given the image if it lacks it. Raises as `probe_now`."""
    bring_images(settings, address, [image], say)
    backend = connect(address, _ProbesRegistry(), runtime)
    try:
        _clear(backend)
        began = time.monotonic()
        checks = probe(backend, Errand(image.digest, _NO_JOB, os.getpid(), _NO_FENCE))
        took_ms = round(1000 * (time.monotonic() - began))
        return Probed(image, subject_of(backend.facts(), image.digest), checks, took_ms, backend.versions())
    finally:
        backend.close()


def _engine(settings: Settings) -> str:
    address = engine_at_hand(settings)
    if address is None:
        raise _nothing_here()
    return address


def _nothing_here(why: str = "") -> Unfit:
    what = "nothing here could run a sandbox" + (f" ({why})" if why else "")
    return Unfit(what, remedy=f"{REMEDY}; or start an engine with `patchyard up`")


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
