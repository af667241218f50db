"""A host is lost with all that it had: a worker on another one, with mirrors of its own, goes on from the ledger."""

from __future__ import annotations

import shutil

import pytest

from tests.chaos.crew import until
from tests.chaos.jobs import PATIENT, SHELL, Shape, edit, shell
from tests.chaos.yard import Yard

pytestmark = pytest.mark.engine

# Two trees are made on the host that is lost, and a third is being made.
BUILT_UP = Shape(
    "built-up",
    (edit("one", "eins"), shell("echo a >a.txt"), shell("sleep 2; cat a.txt calc.txt >b.txt"), {"final": "done"}),
)


def test_work_goes_on_with_another_mirror(yard: Yard) -> None:
    yard.learn([BUILT_UP])
    lost, other = yard.folder / "lost-host", yard.folder / "other-host"
    yard.crew.renew({"sandbox": {"PATCHYARD_HOME": str(lost)}}, renamed=True)
    refs = yard.submit(BUILT_UP, SHELL, PATIENT)
    until(lambda: [step.seq for step in yard.steps(refs[0]) if step.state == "leased" and step.kind == "act"] == [6])
    assert list((lost / "mirrors").iterdir())
    member = yard.crew.members["sandbox"]
    member.once = {"PATCHYARD_HOME": str(other)}
    yard.crew.kill("sandbox")
    shutil.rmtree(lost)
    yard.ends_well(refs)
    assert list((other / "mirrors").iterdir())
    assert not lost.exists()
