"""Connections are cut in the middle of a commit: what a service does not know then, it asks the ledger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.crew import until
from tests.chaos.jobs import FIX, PATIENT, QUICK, UNLUCKY
from tests.chaos.proxy import Proxy, When, proxy_to
from tests.chaos.yard import QUEUES, Yard

pytestmark = pytest.mark.engine

SERVICES = ("scheduler", *QUEUES)
# What services write, by what is said in the transaction.
WRITES = (
    "ledger.lease_step(",
    "ledger.renew_leases(",
    "ledger.intend(",
    "ledger.register_sandbox(",
    "UPDATE ledger.sandboxes",
    "INSERT INTO ledger.evidence",
    "ledger.complete_step(",
    "ledger.give_back(",
    "ledger.admit(",
    "ledger.offer_ready(",
    "ledger.expire_step(",
)


@pytest.fixture(scope="module")
def wire(_yard: Yard) -> Iterator[Proxy]:
    """The wire through which all services of the yard reach the database."""
    with proxy_to(_yard.postgres.url) as proxy:
        _yard.crew.renew({name: {"PATCHYARD_DATABASE_URL": proxy.url} for name in SERVICES})
        yield proxy
        _yard.crew.renew({name: {} for name in SERVICES})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_completion_that_is_cut_off_costs_no_attempt(yard: Yard, wire: Proxy, when: When) -> None:
    cuts = [wire.cut("ledger.complete_step(", when, nth) for nth in (1, 2, 3)]
    refs = yard.submit(QUICK)
    yard.ends_well(refs)
    assert all(cut.made.is_set() for cut in cuts)
    assert [step.attempt for step in yard.steps(refs[0])] == [1] * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_is_cut_off_is_found_out_about(yard: Yard, wire: Proxy, when: When) -> None:
    cuts = [wire.cut(said, when) for said in WRITES]
    refs = yard.submit(PATIENT, UNLUCKY, FIX, PATIENT)
    # A lease is lost, so that there is something to expire.
    until(lambda: any(step.kind == "decide" and step.state == "leased" for ref in refs for step in yard.steps(ref)))
    yard.crew.renew({"decide": {"PATCHYARD_DATABASE_URL": wire.url}})
    yard.ends_well(refs)
    assert [cut.said for cut in cuts if not cut.made.is_set()] == []
