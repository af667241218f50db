"""A test command run on a tree, as evidence: what was run, on what, how it ended, and what its report says.

Evidence is keyed by content: tree (with whatever was laid over it), image, command, report, limits, and the backend and
runtime whose isolation it rests on. Sandboxes are used once and see nothing else, so a run of the same key need not be
repeated, whoever ran it; one with a network sees the world, and is no evidence for another. Only a run that ended by
itself and left a whole report is kept for others: what a timeout or a full disk says is about the host as much as about
the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ledger.evidence import find_evidence, record_evidence
from ledger.objects import put_object
from ledger.records.base import canonical_json, sha256_hex
from ledger.records.job import Acceptance, Tests
from ledger.records.step import Claim
from ledger.records.verdict import TestRun
from policy.ceilings import MIB
from runners.command import Command, job_limits, network_of, run_command
from runners.reports import MAX_REPORT_BYTES, Report, read_report
from runners.runner import Runner
from runners.sandbox.spec import Ended, EngineFacts, NetworkGrant, ReportFile, SandboxResult
from runners.spending import SandboxTime
from runners.tools.observed import tail_of
from runners.workspace.store import Store

_EndedRun = Literal[
    "exited", "signalled", "timed_out", "oom_killed", "disk_full", "command_not_found", "output_flooded"
]
Reuse = Literal["any", "passed", "none"]
"""Which earlier runs of the same key will do. A failure may be a flaky test's, and may not be held against a head that
it was not seen on in its own sandbox."""
_KEY_FORM = "test run 2"
MAX_KEPT_TESTS = 20_000
"""A run of more tests is good for its own verdict, but not kept for others."""


@dataclass(frozen=True)
class TestedTree:
    """A run, and what is not kept with it: why the report can't be used, and the messages of what did not pass."""

    __test__ = False  # not a test class for pytest

    run: TestRun
    remark: str = ""
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """The command ended by itself, all its output was read and its report can be used."""
        return self.run.ended == "exited" and self.run.report == "ok" and not self.run.output_truncated


def evidence_key(
    claim: Claim, tree: str, tests: Tests | Acceptance, engine: EngineFacts, network: NetworkGrant | None = None
) -> str:
    """The key of a run of `tests` on `tree`; acceptance files are laid over `tree` already."""
    content = [
        _KEY_FORM,
        engine.backend,
        engine.runtime,
        tree,
        claim.job.image,
        list(tests.command),
        tests.report,
        tests.timeout_seconds,
        job_limits(claim).plain(),
        *([network.plain()] if network is not None else []),
    ]
    return sha256_hex(canonical_json(content))


def run_tests_on(
    runner: Runner,
    claim: Claim,
    time: SandboxTime,
    store: Store,
    tree: str,
    tests: Tests | Acceptance,
    *,
    reuse: Reuse,
) -> TestedTree:
    """Runs `tests` on `tree`, or takes the evidence of such a run if `reuse` allows it.

    Raises what run_command does, and LeaseLost.
    """
    engine = runner.backend.facts()
    network = network_of(claim, runner.network)
    key = evidence_key(claim, tree, tests, engine, network)
    # What is somewhere in the world may be another thing tomorrow: such a run says nothing of the next.
    known = None if reuse == "none" or network is not None else find_evidence(runner.db, key)
    if known is not None and (reuse == "any" or _all_passed(known)):
        return TestedTree(known)
    command = Command(argv=tests.command, timeout_seconds=tests.timeout_seconds, reports=(tests.report,))
    result = run_command(runner, claim, time, store, tree, command)
    report, remark = _report(result.reports, store, tree)
    tested = TestedTree(_run(key, tree, result, report, runner, engine), remark)
    if report is not None:
        tested.messages.update(report.messages)
    if tested.is_whole and network is None and len(tested.run.tests) <= MAX_KEPT_TESTS:
        record_evidence(runner.db, claim, tested.run)
    return tested


def _all_passed(run: TestRun) -> bool:
    return run.exit_code == 0 and run.failed == 0 and run.passed > 0


def _report(files: tuple[ReportFile, ...], store: Store, tree: str) -> tuple[Report | None, str]:
    """The report, and what is amiss with it or with its not being there."""
    file = next(iter(files), None)
    if file is None or file.state == "missing":
        return None, "no report was written"
    if file.state == "not_a_file":
        return None, f"{file.path} is a link, a folder or a special file"
    if file.state == "too_big":
        return Report("too_big"), f"it has more than {MAX_REPORT_BYTES // MIB} MiB"
    report = read_report(file.data, lambda: (entry.path for entry in store.walk(tree)))
    return report, report.remark


def _run(
    key: str, tree: str, result: SandboxResult, report: Report | None, runner: Runner, engine: EngineFacts
) -> TestRun:
    output = result.output
    return TestRun(
        evidence_key=key,
        tree=tree,
        exit_code=result.exit_code,
        signal=result.signal,
        ended=_ENDED[result.ended],
        output_truncated=result.output_truncated,
        output_bytes=result.output_bytes,
        report="missing" if report is None else report.status,
        tests=report.tests if report else {},
        discovered=len(report.tests) if report else 0,
        passed=report.count("passed") if report else 0,
        failed=report.count("failed", "error") if report else 0,
        skipped=report.count("skipped") if report else 0,
        run_ms=result.timings.run_ms,
        output_sha256=put_object(runner.db, "output", output) if output else None,
        output_tail=tail_of(output, runner.limits.output_tail_bytes),
        sandbox=result.sandbox,
        ran_on=f"{engine.backend}/{engine.runtime}",
    )


_ENDED: dict[Ended, _EndedRun] = {
    "exited": "exited",
    "signalled": "signalled",
    "timed_out": "timed_out",
    "oom_killed": "oom_killed",
    "disk_full": "disk_full",
    "command_not_found": "command_not_found",
    "output_flooded": "output_flooded",
}
