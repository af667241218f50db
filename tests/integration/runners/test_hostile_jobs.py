"""Hostile programs against whole jobs: what would be verified without a repair, and what a command leaves.

The programs stand in `tests/sandbox/hostile/lie` and `leave`. Where one could be stopped only by a rule that a job can
lift (`with`), it is also run with that rule lifted and has to get through: else the rule would be tried by nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ledger.records.base import sha256_hex
from ledger.records.job import Acceptance, Tests
from ledger.records.step import Completion, NewObject, NextStep
from ledger.records.verdict import Verdict
from ledger.steps import complete_step
from runners.runner import Runner
from runners.workspace.pack import pack_between
from runners.workspace.store import EXECUTABLE, FILE, Change
from tests.integration.runners.conftest import PYTEST, Play, Played
from tests.integration.runners.test_verify import ADD_IDS, OLD_ID, hidden

pytestmark = pytest.mark.engine

HOSTILE = Path(__file__).parents[2] / "sandbox" / "hostile"
_REPORT = "/tmp/report.xml"


@dataclass
class Program:
    """A file of the corpus: what its head says (a name may come several times), and its files by path."""

    said: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Program:
        program, at = cls(), ""
        for line in path.read_text().splitlines(keepends=True):
            name, colon, value = line.removeprefix("# ").strip().partition(": ")
            if line.startswith("# ") and colon and name == "at":
                at = value
                program.files[at] = ""
            elif line.startswith("# ") and colon and not at:
                program.said.setdefault(name, []).append(value)
            else:
                program.files[at] = program.files.get(at, "") + line
        return program

    def one(self, name: str, otherwise: str = "") -> str:
        return self.said.get(name, [otherwise])[0]


def names(folder: str) -> list[str]:
    """The programs of a folder."""
    return sorted(path.name for path in (HOSTILE / folder).iterdir())


def test_there_are_as_many_as_it_takes() -> None:
    found = [path for path in HOSTILE.rglob("*") if path.is_file() and path.parent != HOSTILE]
    assert len(found) >= 100
    assert all(len(names(folder)) >= 10 for folder in ("escape", "stay", "fill", "leave", "lie"))


# -- lies -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def verdict_on(play: Play, oci_runner: Runner, sandbox_image: str, tmp_path: Path) -> Callable[..., Verdict]:
    """The verdict on a patch that is in the head tree whatever the tools would have said to it."""

    def judge(program: Program, *given_back: str) -> Verdict:
        command = tuple(shlex.split(program.one("command"))) or PYTEST
        hidden_command = command if command != PYTEST else (*PYTEST, "tests/test_hidden.py")
        tar = hidden(tmp_path)
        played = play(
            using=oci_runner,
            image=sandbox_image,
            objects=(tar,),
            protected=(*program.said.get("protected", ()), *given_back),
            tests=Tests(command=command, report=_REPORT, timeout_seconds=float(program.one("timeout", "60"))),
            acceptance=Acceptance(
                files_sha256=sha256_hex(tar),
                command=hidden_command,
                report=_REPORT,
                fail_to_pass=ADD_IDS,
                pass_to_pass=(OLD_ID,),
                red_on_base=False,
            ),
        )
        _patch(played, program)
        return Verdict.model_validate(played.work().result)

    return judge


def _patch(played: Played, program: Program) -> None:
    store, claim = played.store(), played.claim()
    changes: dict[str, Change | None] = {
        path: Change(EXECUTABLE if text.startswith("#!") else FILE, text.encode())
        for path, text in program.files.items()
        if path
    }
    changes |= dict.fromkeys(program.said.get("gone", ()))
    head = store.with_changes(claim.head_tree, changes)
    moved = Completion(
        result={},
        next=NextStep(kind="verify", input={"on": "head"}),
        head_tree=head,
        objects=(NewObject(kind="pack", data=pack_between(store, claim.head_tree, head)),),
        job_state="verifying",
    )
    offer = complete_step(played.database, claim, moved)
    assert offer is not None
    played.offer = offer


@pytest.mark.parametrize("name", names("lie"))
def test_no_job_that_cheats_is_verified(verdict_on: Callable[..., Verdict], name: str) -> None:
    program = Program.read(HOSTILE / "lie" / name)
    verdict = verdict_on(program)
    assert not verdict.ok
    assert (verdict.reason, program.one("says") in verdict.explanation) == (program.one("held"), True), (
        verdict.explanation
    )


@pytest.mark.parametrize("name", [name for name in names("lie") if "with" in Program.read(HOSTILE / "lie" / name).said])
def test_it_is_the_rule_that_holds_it(verdict_on: Callable[..., Verdict], name: str) -> None:
    program = Program.read(HOSTILE / "lie" / name)
    verdict = verdict_on(program, *program.said["with"])
    assert verdict.ok, verdict.explanation


# -- what is left ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("leave"))
def test_what_a_command_leaves_is_a_tree_or_nothing(
    play: Play, oci_runner: Runner, sandbox_image: str, name: str
) -> None:
    program = Program.read(HOSTILE / "leave" / name)
    played = play(using=oci_runner, image=sandbox_image, protected=("tests/**",))
    before = played.job().head_tree
    result = played.call("run_shell", command=program.files[""])
    seen: Any = "ok" if result.ok else result.error and result.error.code
    assert seen == program.one("code"), result
    after = played.job().head_tree
    assert (after == before) or program.one("code") == "ok"
    store = played.store()
    assert [path for path in program.said.get("kept", ()) if store.entry(after, path) is None] == []
    assert [path for path in program.said.get("not kept", ()) if store.entry(after, path) is not None] == []
    assert program.one("unchanged") != "yes" or after == before
