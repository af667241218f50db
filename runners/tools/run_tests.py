"""run_tests: the job's own test command on the agent's tree, as counts, failures and the end of the output."""

from __future__ import annotations

from typing import Any

from ledger.records.tool import ErrorCode
from policy.errors import ToolFailure
from runners.testrun import TestedTree
from runners.tools.observed import Observed, ToolLimits

_CODES: dict[str, tuple[ErrorCode, str]] = {
    "command_not_found": ("ENOCOMMAND", "the test command is not in the sandbox image"),
    "timed_out": ("ETIMEDOUT", "the tests did not end in time"),
    "disk_full": ("EDISK", "the disk of the sandbox is full"),
}


def observed_tests(tested: TestedTree, limits: ToolLimits) -> Observed:
    """What is shown of a test run. Raises ToolFailure ENOCOMMAND, ETIMEDOUT, EDISK or ENOTESTS, with the same data."""
    run = tested.run
    failed = [test for test, outcome in run.tests.items() if outcome in ("failed", "error")]
    shown = [
        {
            "id": test,
            "outcome": run.tests[test],
            "message": tested.messages.get(test, "")[: limits.message_chars],
        }
        for test in failed[: limits.failures]
    ]
    data: dict[str, Any] = {
        "passed_all": run.exit_code == 0 and run.ended == "exited",
        "exit_code": run.exit_code,
        "ended": run.ended,
        "report": run.report,
        **({"report_remark": tested.remark} if tested.remark else {}),
        "discovered": run.discovered,
        "passed": run.passed,
        "failed": run.failed,
        "skipped": run.skipped,
        "failures": shown,
        "output_tail": run.output_tail,
        "run_ms": run.run_ms,
    }
    if run.ended in _CODES:
        code, message = _CODES[run.ended]
        raise ToolFailure(code, message, data=data)
    if run.report == "ok" and run.discovered == 0:
        raise ToolFailure("ENOTESTS", "the command found no tests", data=data)
    truncated = run.output_truncated or len(shown) < len(failed)
    return Observed(data, truncated)
