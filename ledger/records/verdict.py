"""What a verification saw: evidence bound to one tree, from which the reason follows."""

from __future__ import annotations

from typing import ClassVar, Literal

from ledger.records.base import Record
from ledger.records.job import Reason

TestOutcome = Literal["passed", "failed", "error", "skipped"]


class TestRun(Record):
    """One run of a test command in a fresh sandbox, keyed by content (`evidence_key`).

    `report` is `ok`, or why it can't be used. `tests` maps test ids to outcomes and is empty where there is no report.
    `signal` is given where `ended` is `signalled`. `ran_on` names backend and runtime of the sandbox.
    """

    __test__: ClassVar[bool] = False  # not a test class for pytest

    evidence_key: str
    reused: bool = False
    tree: str
    exit_code: int | None
    signal: int | None = None
    ended: Literal["exited", "signalled", "timed_out", "oom_killed", "disk_full", "command_not_found", "output_flooded"]
    output_truncated: bool
    output_bytes: int = 0
    report: Literal["ok", "missing", "malformed", "too_big"]
    tests: dict[str, TestOutcome] = {}
    discovered: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    run_ms: int = 0
    output_sha256: str | None = None
    output_tail: str = ""
    sandbox: str = ""
    ran_on: str = ""


class IdCounts(Record):
    """Of the ids that an acceptance names: how many passed, how many did not, and which did not."""

    passed: int = 0
    failed: int = 0
    not_passed: tuple[str, ...] = ()


class Verdict(Record):
    """The host's judgement of `tree` (or of the base, `on` = base). It is void for any other tree."""

    on: Literal["base", "head"]
    tree: str
    ok: bool
    reason: Reason
    explanation: str
    candidate: TestRun | None = None
    acceptance: TestRun | None = None
    fail_to_pass: IdCounts | None = None
    pass_to_pass: IdCounts | None = None
    protected_changed: tuple[str, ...] = ()
    files_changed: int = 0
