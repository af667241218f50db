"""Our profile of system calls is the engine's default less a list, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from images import seccomp
from ledger.errors import Unfit
from runners.sandbox.probe.program import TRIES

BOTH = list(seccomp.ARCHITECTURES)


def allowed(profile: dict[str, object]) -> set[str]:
    """The calls that a profile allows, on whatever condition."""
    rules = profile["syscalls"]
    assert isinstance(rules, list)
    return {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}


@pytest.mark.parametrize("architecture", BOTH)
def test_what_is_committed_is_what_is_made(architecture: str) -> None:
    assert json.loads(seccomp.profile_text(architecture)) == seccomp.generate(architecture)


@pytest.mark.parametrize("architecture", BOTH)
def test_it_is_the_engines_default_less_what_has_a_reason(architecture: str) -> None:
    default = seccomp.engine_default()
    of_engine = {*default["allowed"], *default["allowed_on"][architecture], "socket", "personality", "clone"}
    ours, removed = allowed(seccomp.generate(architecture)), seccomp.removed()
    assert ours <= of_engine
    assert of_engine - ours == {name for name in removed if name in of_engine}
    assert all(why.strip().endswith(".") and len(why) > 20 for why in removed.values())


def test_nothing_is_removed_that_was_never_allowed() -> None:
    default = seccomp.engine_default()
    of_engine = {*default["allowed"], *(name for names in default["allowed_on"].values() for name in names)}
    assert set(seccomp.removed()) <= of_engine


def test_no_call_is_removed_and_narrowed_at_once() -> None:
    assert not set(seccomp.removed()) & set(seccomp.changes()["narrowed"])


@pytest.mark.parametrize("architecture", BOTH)
def test_what_the_engine_refuses_is_refused(architecture: str) -> None:
    default, profile = seccomp.engine_default(), seccomp.generate(architecture)
    rules = profile["syscalls"]
    families = [rule["args"][0]["value"] for rule in rules if rule["names"] == ["socket"]]
    assert families
    assert not set(families) & set(default["socket_families_refused"])
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert [rule["errnoRet"] for rule in rules if rule["names"] == ["clone3"]] == [38]
    assert [rule["args"][0]["value"] for rule in rules if rule["names"] == ["clone"]] == [0x7E020000]


@pytest.mark.parametrize("architecture", BOTH)
def test_the_calls_that_probes_make_are_not_allowed(architecture: str) -> None:
    conditional = {"socket", "clone", "personality"}
    tried = {name.partition("_")[0] if name.startswith(("socket", "clone_", "unshare")) else name for name in TRIES}
    assert len(tried) > 15
    assert not (tried - conditional) & allowed(seccomp.generate(architecture))


def test_every_removed_call_has_a_number_or_belongs_to_others() -> None:
    on_x86, on_arm = (seccomp.numbers(architecture) for architecture in BOTH)
    foreign = set(seccomp.changes()["foreign"]["names"])
    assert {*on_x86, *on_arm} == set(seccomp.removed()) - foreign
    assert len(set(on_x86.values())) == len(on_x86)


def test_a_profile_is_told_from_another() -> None:
    prints = {seccomp.fingerprint(architecture) for architecture in BOTH}
    assert len(prints) == 2


def test_the_page_on_security_names_every_call_with_its_reason() -> None:
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()
    for group in seccomp.changes()["removed"]:
        assert f"| {', '.join(f'`{name}`' for name in group['numbers'])} | {group['why']} |" in page


def test_an_architecture_nobody_has_tried_is_refused() -> None:
    with pytest.raises(Unfit, match="riscv64"):
        seccomp.profile_text("riscv64")
