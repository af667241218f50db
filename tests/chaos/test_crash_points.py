"""A process dies at each of its crash points, and no job ends in another way than if it had lived."""

from __future__ import annotations

import signal

import pytest

from ledger.events import read_events
from ledger.faults import CRASH_POINTS
from tests.chaos.conftest import EVERYTHING
from tests.chaos.points import ARMED_POINTS, BATCH, MEMBER_OF, NOTHING_ARMED, PASSED_BY, Passings, Which, count_passings
from tests.chaos.yard import Yard

pytestmark = pytest.mark.engine

Case = tuple[str, str, Which]
MATRIX: list[Case] = [
    (kind, point, which)
    for kind, points in PASSED_BY.items()
    for point in points
    for which in ("first", "second", "last")
]
CHOSEN: list[Case] = [
    ("publish", "claim.after", "second"),
    ("decide", "decide.after_model", "last"),
    ("act", "act.before_intent", "first"),
    ("act", "act.after_intent", "second"),
    ("act", "act.after_effect", "last"),
    ("act", "sandbox.after_register", "first"),
    ("verify", "sandbox.after_create", "second"),
    ("act", "sandbox.after_start", "last"),
    ("verify", "sandbox.after_exit", "first"),
    ("publish", "publish.after_intent", "first"),
    ("publish", "publish.after_effect", "last"),
    ("verify", "complete.before_commit", "last"),
    ("decide", "complete.after_commit", "second"),
    ("dispatch", "dispatch.after_send", "second"),
]


@pytest.fixture(scope="module")
def passings(_yard: Yard) -> Passings:
    """Counted once; afterwards everybody counts no more."""
    counted = count_passings(_yard)
    _yard.crew.renew({name: {} for name in MEMBER_OF.values()})
    return counted


def test_every_kind_of_step_passes_the_points_that_are_tried_at_least_twice(passings: Passings) -> None:
    tried = {(kind, point) for kind, point, _ in MATRIX}
    assert passings.numbers.keys() == tried
    assert all(len(numbers) >= 2 for numbers in passings.numbers.values())


def test_every_crash_point_is_tried_at_least_once() -> None:
    assert {point for _, point, _ in CHOSEN} | set(ARMED_POINTS) == set(CRASH_POINTS)
    assert set(CHOSEN) <= set(MATRIX)


@pytest.mark.parametrize(("kind", "point", "which"), MATRIX if EVERYTHING else CHOSEN)
def test_a_process_that_dies_at_a_crash_point_changes_nothing(
    yard: Yard, passings: Passings, kind: str, point: str, which: Which
) -> None:
    member = MEMBER_OF[kind]
    nth = passings.nth(kind, point, which)
    # Every other successor has another name, so that the dead one's leases have to run out.
    yard.crew.renew({member: {"PATCHYARD_CRASH": f"{point}:{nth}", **NOTHING_ARMED}}, renamed=nth % 2 == 0)
    armed = yard.crew.members[member]
    deaths = len(armed.deaths)
    refs = yard.submit(*BATCH, max_parallel=1)
    yard.ends_well(refs)
    assert armed.deaths[deaths:] == [-signal.SIGKILL]
    assert _kinds_taken_again(yard, refs) == ([] if point in _DIES_BETWEEN_STEPS else [kind])


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", ARMED_POINTS)
def test_a_worker_that_dies_over_an_armed_sandbox_changes_nothing(yard: Yard, point: str, nth: int) -> None:
    yard.crew.renew({"sandbox": {"PATCHYARD_CRASH": f"{point}:{nth}"}}, renamed=nth > 1)
    worker = yard.crew.members["sandbox"]
    deaths = len(worker.deaths)
    yard.ends_well(yard.submit(*BATCH, max_parallel=1))
    assert worker.deaths[deaths:] == [-signal.SIGKILL]


_DIES_BETWEEN_STEPS = ("complete.after_commit", "dispatch.after_send")


def _kinds_taken_again(yard: Yard, refs: list[str]) -> list[str]:
    """Of each step whose lease ended without its outcome: the kind."""
    kinds = {step.id: step.kind for ref in refs for step in yard.steps(ref)}
    events = [event for ref in refs for event in read_events(yard.db, yard.job(ref).id)]
    return [kinds[event.step_id] for event in events if event.kind == "lease_expired" and event.step_id is not None]
