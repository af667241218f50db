"""run_tests: the job's own test command on the agent's tree, as counts, failures and the end of the output."""

from __future__ import annotations

from typing import Any

from ledger.records.job import Tests
from ledger.records.tool import ErrorCode
from policy.ceilings import Limits
from policy.errors import ToolFailure
from runners.testrun import TestedTree
from runners.told import how_it_ended, too_much_output
from runners.tools.observed import Observed, ToolLimits

_CODES: dict[str, ErrorCode] = {
    "command_not_found": "ENOCOMMAND",
    "timed_out": "ETIMEDOUT",
    "disk_full": "EDISK",
    "output_flooded": "ETOOBIG",
}


def observed_tests(tested: TestedTree, tests: Tests, sandbox: Limits, limits: ToolLimits) -> Observed:
    """What is shown of a run of `tests` within `sandbox`'s limits.

    Raises ToolFailure ENOCOMMAND, ETIMEDOUT, EDISK, ETOOBIG or ENOTESTS, with the same data.
    """
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
        **({"ended_because": how_it_ended(run, tests, sandbox)} if run.ended != "exited" else {}),
        **({"output_remark": too_much_output(run, sandbox)} if run.output_truncated else {}),
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
        raise ToolFailure(_CODES[run.ended], f"the test command {how_it_ended(run, tests, sandbox)}", data=data)
    if run.report == "ok" and run.discovered == 0:
        raise ToolFailure("ENOTESTS", "the command found no tests", data=data)
    truncated = run.output_truncated or len(shown) < len(failed)
    return Observed(data, truncated)
