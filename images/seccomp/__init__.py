"""The system calls that a sandbox may make: the engine's default profile, less a list with a reason for each call.

`engine-default.json` holds what the default profile of moby (the engine's project) allows to a container without
capabilities, as facts with their source. `profile.toml` says what is left out of it, and which calls stay for some of
their arguments only. The profiles are made of the two by `python -m images.seccomp`, one for each architecture, and
committed, so that a change of either shows in a diff. It is an allow list: a call that a new kernel brings fails with
EPERM until both lists have been gone through again.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from ledger.errors import Unfit
from ledger.records.base import canonical_json, sha256_hex

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
"""By the engine's name. Others lack nothing but somebody who has tried them."""
_FOLDER = Path(__file__).parent
_ALLOW, _REFUSE = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
_EPERM = 1


def engine_default() -> dict[str, Any]:
    """The facts of the engine's default profile, see `engine-default.json`."""
    facts: dict[str, Any] = json.loads((_FOLDER / "engine-default.json").read_text())
    return facts


def changes() -> dict[str, Any]:
    """What is left out of it, and what is narrowed, see `profile.toml`."""
    return tomllib.loads((_FOLDER / "profile.toml").read_text())


def removed() -> dict[str, str]:
    """Every call that the default allows and ours does not, with the reason."""
    told = changes()
    by_reason = {name: group["why"] for group in told["removed"] for name in group["numbers"]}
    return by_reason | dict.fromkeys(told["foreign"]["names"], told["foreign"]["why"])


def numbers(architecture: str) -> dict[str, int]:
    """The numbers of the removed calls that this architecture has."""
    at = list(ARCHITECTURES).index(architecture)
    found = {name: both[at] for group in changes()["removed"] for name, both in group["numbers"].items()}
    return {name: number for name, number in found.items() if number >= 0}


def generate(architecture: str) -> dict[str, Any]:
    """The profile, in the form that engines and OCI runtimes share. Raises Unfit for an unknown architecture."""
    _require(architecture)
    default, told = engine_default(), changes()
    left_out, narrowed = removed(), told["narrowed"]
    allowed = {*default["allowed"], *default["allowed_on"][architecture]} - {*left_out, *narrowed}
    return {
        "defaultAction": _REFUSE,
        "defaultErrnoRet": _EPERM,
        "architectures": [ARCHITECTURES[architecture]],
        "syscalls": [
            {"names": sorted(allowed), "action": _ALLOW},
            *(_when(name, _equal(family)) for name, rule in narrowed.items() for family in rule["families"].values()),
            *(_when("personality", _equal(persona)) for persona in default["personalities"]),
            _when("clone", _argument(default["clone_flags_refused"], "SCMP_CMP_MASKED_EQ")),
            # Its flags are in memory, where no filter can look; told that it does not exist, libc uses clone.
            {"names": ["clone3"], "action": _REFUSE, "errnoRet": default["clone3_errno"]},
        ],
    }


def profile_file(architecture: str) -> Path:
    """Where the profile of an architecture is committed. Raises Unfit for an unknown one."""
    _require(architecture)
    return _FOLDER / f"{architecture}.json"


@cache
def profile_text(architecture: str) -> str:
    """The committed profile, as text. Raises Unfit for an unknown architecture."""
    return profile_file(architecture).read_text()


def fingerprint(architecture: str) -> str:
    """What tells a profile from every other. Raises Unfit for an unknown architecture."""
    return sha256_hex(canonical_json(json.loads(profile_text(architecture))))[:16]


def _require(architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise Unfit(f"no seccomp profile for {architecture}", remedy=f"use an engine on {' or '.join(ARCHITECTURES)}")


def _equal(value: int) -> dict[str, Any]:
    return _argument(value, "SCMP_CMP_EQ")


def _argument(value: int, operator: str) -> dict[str, Any]:
    return {"index": 0, "value": value, "valueTwo": 0, "op": operator}


def _when(name: str, argument: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": _ALLOW, "args": [argument]}
