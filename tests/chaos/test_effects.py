"""What goes to a git remote and to a forge is there once, whoever dies and whatever those two answer."""

from __future__ import annotations

import signal

import pytest

from tests.chaos.conftest import EVERYTHING
from tests.chaos.jobs import BRANCH, REQUEST
from tests.chaos.yard import Yard

pytestmark = pytest.mark.engine

# A request is three effects: the branch, the request itself, and a comment that tells an issue of it.
CHOSEN = ("publish.after_effect:2", "publish.after_effect:3")
# An intent without an effect is looked for until the remote has had time to show it: this takes a while.
REST = (
    "publish.after_effect:1",
    "publish.after_intent:1",
    "publish.after_intent:2",
    "publish.after_intent:3",
    "complete.before_commit",
    "complete.after_commit",
)


@pytest.mark.parametrize("crash", [*CHOSEN, *(REST if EVERYTHING else [])])
def test_a_publish_worker_that_dies_half_way_publishes_once(yard: Yard, crash: str) -> None:
    yard.crew.renew({"publish": {"PATCHYARD_CRASH": crash}})
    deaths = len(yard.crew.members["publish"].deaths)
    yard.ends_well(yard.submit(REQUEST))
    assert yard.crew.members["publish"].deaths[deaths:] == [-signal.SIGKILL]


def test_a_remote_and_a_forge_that_fail_before_and_after_are_looked_at(yard: Yard) -> None:
    out = yard.outside
    out.served.faults += ["drop_after", "500_before", "late"]
    out.forge.faults += ["twice", "500_after", "drop_after"]  # the first write is a request, the others may be comments
    yard.ends_well(yard.submit(REQUEST, BRANCH, REQUEST))
    assert (out.served.faults, out.forge.faults) == ([], [])
