"""A process is stopped for longer than its lease lasts. Its successor goes on; when it wakes up, it changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from ledger.reads import SandboxHistory, job_sandboxes
from tests.chaos.conftest import EVERYTHING
from tests.chaos.crew import until
from tests.chaos.points import ARMED_POINTS, BATCH, MEMBER_OF, NOTHING_ARMED, PASSED_BY
from tests.chaos.process import STOP
from tests.chaos.yard import Yard

pytestmark = pytest.mark.engine

# For each member the point at which it stops itself, and at which passing. What they do at a point they do wherever
# they pass it, so that three can stop in one batch.
CHOSEN: list[dict[str, str]] = [
    {"decide": "decide.after_model:3", "sandbox": "sandbox.after_start:2", "publish": "publish.after_effect"},
    {"decide": "complete.before_commit", "sandbox": "act.after_effect:2", "publish": "publish.after_intent:2"},
]
_QUIET = ("complete.after_commit", "dispatch.after_send")
REST = [
    {MEMBER_OF[kind]: f"{point}:2"}
    for kind, points in PASSED_BY.items()
    for point in points
    if point not in _QUIET and {MEMBER_OF[kind]: f"{point}:2"} not in CHOSEN
]


@contextmanager
def _successors(yard: Yard, stops: dict[str, str]) -> Iterator[None]:
    """Another worker of each queue, as soon as the first one of it has stopped."""
    waited_for = set(stops)

    def all_stopped() -> bool:
        for name in [name for name in waited_for if yard.crew.members[name].has_stopped()]:
            waited_for.remove(name)
            yard.worker(name, f"{name}-successor")
        return not waited_for

    try:
        until(all_stopped, 120, what=f"all have stopped of {stops}")
        yield
    finally:
        for name in set(stops) - waited_for:
            yard.crew.remove(f"{name}-successor")


@pytest.mark.parametrize("stops", [*CHOSEN, *(REST if EVERYTHING else [])], ids=lambda stops: " ".join(stops.values()))
def test_a_worker_that_wakes_up_too_late_changes_nothing(yard: Yard, stops: dict[str, str]) -> None:
    yard.crew.renew({name: {STOP: point, **NOTHING_ARMED} for name, point in stops.items()})
    refs = yard.submit(*BATCH, max_parallel=1)
    with _successors(yard, stops):
        yard.ends_well(refs)
        _sandboxes_died_before_the_work_was_repeated(yard, refs)
        for name in stops:
            yard.crew.go_on(name)
        for name in stops:
            until(lambda name=name: yard.crew.members[name].says("result_thrown_away"), what=f"{name} noticed")  # type: ignore[misc]
        assert yard.violations(refs) == []


@pytest.mark.parametrize("point", ARMED_POINTS)
def test_a_worker_that_is_stopped_over_an_armed_sandbox_changes_nothing(yard: Yard, point: str) -> None:
    yard.crew.renew({"sandbox": {STOP: point}})
    refs = yard.submit(*BATCH, max_parallel=1)
    with _successors(yard, {"sandbox": point}):
        yard.ends_well(refs)
        _sandboxes_died_before_the_work_was_repeated(yard, refs)
        yard.crew.go_on("sandbox")
        if point == "sandbox.after_bind":  # at the other one it may have had no step in hand
            until(lambda: yard.crew.members["sandbox"].says("result_thrown_away"), what="it noticed")
        assert yard.violations(refs) == []


def _sandboxes_died_before_the_work_was_repeated(yard: Yard, refs: list[str]) -> None:
    rows = [row for ref in refs for row in job_sandboxes(yard.db, yard.job(ref).id)]
    for first, second in itertools.permutations(rows, 2):
        if first.step_id == second.step_id and first.fence < second.fence:
            assert first.removed_at is not None
            assert first.removed_at <= _began(second)


def _began(row: SandboxHistory) -> datetime:
    """When it became this step's: an armed one is older than that."""
    return row.registered_at + timedelta(milliseconds=row.evidence.get("waited_ms", 0))


def test_while_the_leading_scheduler_is_stopped_another_one_leads(yard: Yard) -> None:
    yard.scheduler("follower")
    yard.crew.ready("follower")
    yard.crew.stop("scheduler")
    refs = yard.submit(*BATCH)
    until(lambda: yard.crew.members["follower"].says("lead_taken"), 120, "the follower leads")
    yard.ends_well(refs)
    yard.crew.go_on("scheduler")
    until(lambda: yard.crew.members["scheduler"].says("lead_lost"), what="the first one noticed")
    yard.crew.remove("follower")
