"""A whole probe of one image on one backend: a look from inside and outside, and then the attacks.

The look from outside comes while the sandbox's first process waits for the rest of its files, which the stream of
files holds back until the look is over. So nothing has to be caught in flight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ledger.errors import Permanent
from ledger.records.probe import Check
from policy.ceilings import MIB, Limits
from runners.sandbox.backend import Backend, Inspection, SandboxBroken
from runners.sandbox.probe import identity, outside, places, program, surroundings
from runners.sandbox.probe.force import ATTACKS, Attack
from runners.sandbox.probe.seen import Asked, NotObserved, Seen, Unseen, judged, judged_one, read_report
from runners.sandbox.spec import SandboxResult, SandboxSpec

INSIDE = {**identity.CHECKS, **places.CHECKS, **surroundings.CHECKS}
_NO_FILES = bytes(10_240)  # an empty tar
_REPORT_BYTES = 4 * MIB
_AT_ONCE = 2
_LOOK_SECONDS = 30.0
_START_SECONDS, _LOOK_EVERY_SECONDS = 30.0, 0.01
_LOOK = Limits(
    memory_bytes=256 * MIB,
    cpus=1.0,
    pids=64,
    open_files=256,
    file_size_bytes=8 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=24 * MIB,
)
"""Unlike what any job has by default, so that what was asked for is told from what happens to be there."""


class ProbeStopped(Permanent):
    """The probe was stopped from outside, and says nothing."""


@dataclass(frozen=True)
class Errand:
    """What to probe, and under whose name its sandboxes are registered."""

    image: str
    job_id: int
    step_id: int
    fence: int

    def spec(self, command: tuple[str, ...], limits: Limits, deadline_seconds: float, **more: object) -> SandboxSpec:
        """A sandbox of this errand."""
        fixed = {"image": self.image, "job_id": self.job_id, "step_id": self.step_id, "fence": self.fence}
        asked = {"command": command, "limits": limits, "deadline_seconds": deadline_seconds, "purpose": "probe"}
        return SandboxSpec.model_validate({**fixed, **asked, **more})


def probe(backend: Backend, errand: Errand, cancelled: threading.Event | None = None) -> list[Check]:
    """Probes one image: every check that there is, in a fixed order.

    A sandbox that does not do what a sandbox does fails its checks; an engine that is away, or an image that is not
    there, says nothing of isolation. Raises ProbeStopped, EngineUnavailable, SandboxLost, ImageUnavailable, Unfit, and
    what the registry raises.
    """
    checks = look(backend, errand, cancelled)
    amiss = [check for check in checks if not check.ok]
    if amiss and all(isinstance(check, Unseen) for check in amiss):
        checks = look(backend, errand, cancelled)  # what was not seen may be seen, and what was seen stays
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="probe") as pool:
        tried = [(one, pool.submit(attack, backend, errand, one, cancelled)) for one in ATTACKS]
    for one, attempt in tried:
        seen = attempt.result()
        # What a busy machine did not get done in time is no hole, and a hole shows again.
        checks += seen if all(check.ok for check in seen) else attack(backend, errand, one.unhurried(), cancelled)
    checks.append(judged_one("force.nothing_left", partial(_nothing_left, backend, errand)))
    return checks


# -- looking ----------------------------------------------------------------------------------------------------------


@dataclass
class _Look:
    """What was seen from outside of the one sandbox that is looked at; `broken` says why it is nothing."""

    backend: Backend
    spec: SandboxSpec
    cancelled: threading.Event
    inspection: Inspection | None = None
    of_kernel: dict[str, str] | None = None
    broken: str = "it was not looked at from outside"

    def files(self) -> Iterator[bytes]:
        """The sandbox's files, none; when the next piece is wanted, it is looked at."""
        yield _NO_FILES
        until = time.monotonic() + _START_SECONDS
        while self.inspection is None and time.monotonic() < until:
            try:
                self._from_outside()
            except SandboxBroken as broken:
                self.broken = broken.message
                if self.cancelled.wait(_LOOK_EVERY_SECONDS):
                    return

    def _from_outside(self) -> None:
        found = [one for one in self.backend.find(step_id=self.spec.step_id) if one.fence == self.spec.fence]
        if len(found) != 1:
            raise SandboxBroken(f"{len(found)} sandboxes are there, and one was made")
        inspection = self.backend.inspect(self.spec, found[0])
        if inspection.pid is not None:
            told = outside.look_at_process(inspection.pid)
            if told is not None and not outside.has_begun(told):
                raise SandboxBroken("its first process has not begun")
            self.of_kernel = told
        self.inspection = inspection


def look(backend: Backend, errand: Errand, cancelled: threading.Event | None = None) -> list[Check]:
    """The checks of what is seen, without the attacks. Raises as `probe` does."""
    facts = backend.facts()
    spec = errand.spec(
        program.argv(facts.architecture),
        _LOOK,
        _LOOK_SECONDS,
        reports=(program.REPORT,),
        report_bytes=_REPORT_BYTES,
    )
    outer, asked, seen = _Look(backend, spec, cancelled or threading.Event()), Asked(spec, facts), Seen({})
    try:
        seen, how = _observations(backend.run(spec, outer.files(), cancelled))
    except SandboxBroken as broken:
        how = broken.message
    _unless_stopped(cancelled)
    checks = [judged_one("observed.inside", partial(_whole, seen, how)), *judged(INSIDE, seen, asked)]
    checks += outside.record_checks(outer.inspection, outer.broken)
    if outer.of_kernel is not None:
        checks += judged(outside.CHECKS, Seen(outer.of_kernel), asked)
    return checks


def _whole(seen: Seen, how: str) -> tuple[bool, str]:
    if "end" not in seen:
        raise NotObserved(how)
    return True, how


def _observations(result: SandboxResult) -> tuple[Seen, str]:
    """What was observed, if the observer ended well and its whole report came out; and how that went."""
    if result.exit_code != 0 or not result.reports or result.reports[0].state != "ok":
        said = result.output[-200:].decode(errors="replace")
        return Seen({}), f"the observer {result.ended.replace('_', ' ')} ({result.exit_code}): {said}"
    seen = read_report(result.reports[0].data)
    return seen, f"{seen['end']} observations" if "end" in seen else "the observer's report is not whole"


# -- trying by force --------------------------------------------------------------------------------------------------


def attack(backend: Backend, errand: Errand, one: Attack, cancelled: threading.Event | None = None) -> list[Check]:
    """The checks of one attack. Raises as `probe` does."""
    spec = errand.spec(one.command, one.limits, one.deadline_seconds)
    stop = cancelled
    files: Iterator[bytes] = iter((_NO_FILES,))
    if one.cancel_after_seconds is not None:
        stop = threading.Event()
        files = _cancelling(stop, one.cancel_after_seconds)
    judge: Callable[[str], Check]
    try:
        result = backend.run(spec, files, stop)
    except SandboxBroken as broken:
        judge = partial(_broken, broken.message)
    else:
        judge = partial(_judged, result, one)
    _unless_stopped(cancelled)
    return [judge(name) for name in one.judges]


def _judged(result: SandboxResult, one: Attack, name: str) -> Check:
    return judged_one(name, partial(one.judges[name], result, one))


def _broken(why: str, name: str) -> Check:
    return judged_one(name, lambda: (False, why))


def _cancelling(stop: threading.Event, after_seconds: float) -> Iterator[bytes]:
    yield _NO_FILES
    timer = threading.Timer(after_seconds, stop.set)
    timer.daemon = True
    timer.start()


def _nothing_left(backend: Backend, errand: Errand) -> tuple[bool, str]:
    left = [one.name for one in backend.find(step_id=errand.step_id) if one.fence == errand.fence]
    return not left, ", ".join(left) or "no sandbox of this probe is there any more"


def _unless_stopped(cancelled: threading.Event | None) -> None:
    if cancelled is not None and cancelled.is_set():
        raise ProbeStopped
