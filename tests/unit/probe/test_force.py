"""The judges of attacks: each goes red when the attack got further than its bound, and when it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from runners.sandbox.probe.force import ATTACKS, Attack
from runners.sandbox.probe.seen import judged_one
from runners.sandbox.spec import SandboxResult, Timings
from tests.unit.probe.good import IMAGE

ATTACK_OF: dict[str, Attack] = {name: attack for attack in ATTACKS for name in attack.judges}
MEMORY = ATTACK_OF["force.memory"].limits.memory_bytes
DISK = b"file 1048576 27\nplace /workspace 4194304 28\nplace /tmp 4194304 28\n"
REPORTED = {"reported": True, "ended_by_us": None}
GOOD: dict[str, dict[str, Any]] = {
    "force.processes": {
        "timed_out": True, "output_head": b"stopped 28 11\n", "refused_forks": 54, "evidence": REPORTED,
    },
    "force.deadline": {"timed_out": True, "timings": Timings(run_ms=806), "evidence": REPORTED},
    "force.processor": {"output_head": b"processor 110 400 3\n", "oom_killed": True, "signal": 9},
    "force.memory": {"oom_killed": True, "oom_kills": 1, "peak_memory_bytes": MEMORY, "signal": 9},
    "force.disk": {"disk_full": True, "exit_code": 1, "output_head": DISK},
    "force.file_size": {"disk_full": True, "exit_code": 1, "output_head": DISK},
    "force.output": {
        "output_flooded": True, "output_truncated": True, "output_bytes": 1_200_000, "output_head": b"x" * 32_768,
        "output_tail": b"x" * 32_768,
    },
    "force.cancel": {"cancelled": True},
}  # fmt: skip
BAD: list[tuple[str, dict[str, Any]]] = [
    ("force.processes", {"output_head": b"not stopped\n"}),
    ("force.processes", {"output_head": b"stopped 128 11\n"}),
    ("force.processes", {"output_head": b"stopped 28 12\n"}),
    ("force.processes", {"refused_forks": 0}),
    ("force.processes", {"output_head": b""}),
    ("force.deadline", {"timed_out": False, "exit_code": 0}),
    ("force.deadline", {"timed_out": False, "signal": 15}),
    ("force.deadline", {"timings": Timings(run_ms=10)}),
    ("force.processor", {"output_head": b"processor 400 400 0\n"}),
    ("force.processor", {"output_head": b"processor 110 400 0\n"}),
    ("force.processor", {"output_head": b"processor 700 400 -\n"}),
    ("force.processor", {"output_head": b""}),
    ("force.memory", {"oom_killed": False, "oom_kills": 0, "exit_code": 0, "signal": None}),
    ("force.memory", {"oom_killed": False, "oom_kills": 0}),
    ("force.memory", {"peak_memory_bytes": 2 * MEMORY}),
    ("force.disk", {"disk_full": False}),
    ("force.disk", {"output_head": DISK.replace(b"/tmp 4194304 28", b"/tmp 16777216 0")}),
    ("force.disk", {"output_head": DISK.replace(b"place /tmp 4194304 28\n", b"")}),
    ("force.disk", {"output_head": DISK.replace(b"/workspace 4194304 28", b"/workspace 1 5")}),
    ("force.file_size", {"output_head": DISK.replace(b"1048576 27", b"4194304 0")}),
    ("force.file_size", {"output_head": b""}),
    ("force.output", {"output_flooded": False, "exit_code": 0}),
    ("force.output", {"output_truncated": False}),
    ("force.output", {"output_head": b"x" * 1_000_000}),
    ("force.cancel", {"cancelled": False, "exit_code": 0}),
    ("force.cancel", {"cancelled": False, "timed_out": True}),
]


def passes(name: str, fields: dict[str, Any]) -> bool:
    attack = ATTACK_OF[name]
    result = SandboxResult.model_validate({"sandbox": "s", "image": IMAGE, **fields})
    return judged_one(name, lambda: attack.judges[name](result, attack)).ok


@pytest.mark.parametrize("name", GOOD)
def test_a_bound_that_holds_passes(name: str) -> None:
    assert passes(name, GOOD[name])


@pytest.mark.parametrize(("name", "changed"), BAD, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BAD)])
def test_a_bound_that_does_not_hold_fails(name: str, changed: dict[str, Any]) -> None:
    assert not passes(name, GOOD[name] | changed)


def test_every_judge_is_seen_both_ways() -> None:
    assert {name for name, _ in BAD} == set(GOOD) == set(ATTACK_OF)


def test_a_busy_machine_is_not_an_unsafe_one() -> None:
    starved = {"output_head": b"processor 350 3010 0\n"}
    assert passes("force.processor", GOOD["force.processor"] | starved)


def test_the_clock_outside_is_as_good_as_the_fuse() -> None:
    late = {"evidence": {"reported": False, "ended_by_us": "timed_out"}, "refused_forks": 0}
    assert passes("force.processes", GOOD["force.processes"] | late)
    assert passes("force.deadline", GOOD["force.deadline"] | late)
