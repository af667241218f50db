"""A process dies at each of its crash points, and no job ends in another way than if it had lived."""

from __future__ import annotations

import signal

import pytest

from ledger.events import read_events
from ledger.faults import CRASH_POINTS
from tests.chaos.conftest import EVERYTHING
from tests.chaos.points import (
    ARMED_POINTS,
    BATCH,
    MEMBER_OF,
    NETWORK_POINTS,
    NOTHING_ARMED,
    PASSED_BY,
    Passings,
    Which,
    count_passings,
)
from tests.chaos.yard import Yard

pytestmark = pytest.mark.engine

Case = tuple[str, str, Which]
MATRIX: list[Case] = [
    (kind, point, which)
    for kind, points in PASSED_BY.items()
    for point in points
    for which in ("first", "second", "last")
]
CHOSEN: list[tuple[Case, ...]] = [
    (
        ("decide", "decide.after_model", "last"),
        ("act", "act.before_intent", "first"),
        ("publish", "claim.after", "second"),
        ("dispatch", "dispatch.after_send", "second"),
    ),
    (
        ("decide", "complete.after_commit", "second"),
        ("act", "act.after_intent", "second"),
        ("publish", "publish.after_intent", "first"),
    ),
    (("act", "act.after_effect", "last"), ("publish", "publish.after_effect", "last")),
    (("verify", "sandbox.after_create", "second"), ("decide", "complete.before_commit", "last")),
    (("act", "sandbox.after_start", "last"), ("decide", "claim.after", "first")),
    (("act", "sandbox.after_register", "first"),),
    (("verify", "sandbox.after_exit", "first"), ("publish", "complete.after_commit", "second")),
]
"""The short form: one death of each process in a batch. Each of them dies once, so none of them changes the others'
passings."""


@pytest.fixture(scope="module")
def passings(_yard: Yard) -> Passings:
    """Counted once; afterwards everybody counts no more."""
    counted = count_passings(_yard)
    _yard.crew.renew({name: {} for name in MEMBER_OF.values()})
    return counted


def test_every_kind_of_step_passes_the_points_that_are_tried_three_times_or_more(passings: Passings) -> None:
    tried = {(kind, point) for kind, point, _ in MATRIX}
    assert passings.numbers.keys() == tried
    assert {passed: len(numbers) for passed, numbers in passings.numbers.items() if len(numbers) < 3} == {}


def test_the_short_form_tries_every_crash_point() -> None:
    chosen = {case for cases in CHOSEN for case in cases}
    assert {point for _, point, _ in chosen} | {*ARMED_POINTS, *NETWORK_POINTS} == set(CRASH_POINTS)
    assert chosen <= set(MATRIX)
    assert all(len({MEMBER_OF[kind] for kind, _, _ in cases}) == len(cases) for cases in CHOSEN)


@pytest.mark.parametrize(
    "cases",
    [(case,) for case in MATRIX] if EVERYTHING else CHOSEN,
    ids=lambda cases: " ".join("-".join(case) for case in cases),
)
def test_a_process_that_dies_at_a_crash_point_changes_nothing(
    yard: Yard, passings: Passings, cases: tuple[Case, ...]
) -> None:
    nth = {MEMBER_OF[kind]: (point, passings.nth(kind, point, which)) for kind, point, which in cases}
    # Every other successor has another name, so that the dead one's leases have to run out.
    renamed = sum(number for _, number in nth.values()) % 2 == 0
    yard.crew.renew(
        {name: {"PATCHYARD_CRASH": f"{point}:{number}", **NOTHING_ARMED} for name, (point, number) in nth.items()},
        renamed=renamed,
    )
    deaths = {name: len(yard.crew.members[name].deaths) for name in nth}
    refs = yard.submit(*BATCH, max_parallel=1)
    yard.ends_well(refs)
    for name, before in deaths.items():
        assert yard.crew.members[name].deaths[before:] == [-signal.SIGKILL], name
    taken_again = [kind for kind, point, _ in cases if point not in _DIES_BETWEEN_STEPS]
    assert sorted(_kinds_taken_again(yard, refs)) == sorted(taken_again)


@pytest.mark.parametrize("nth", [1, 2, 3] if EVERYTHING else [1])
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
