"""In words: how a test run ended that did not end well, and which field of the job changes that.

The same words are in the verdict and in what the agent observes. A limit is named with its value, and with the field
that raises it where there is one, so that nobody has to look up what happened.
"""

from __future__ import annotations

import signal

from ledger.records.job import Acceptance, Tests
from ledger.records.verdict import TestRun
from policy.ceilings import KIB, MIB, Limits


def how_it_ended(run: TestRun, tests: Tests | Acceptance, limits: Limits) -> str:
    """What became of the command, as the end of a sentence that begins with it."""
    workspace, tmp = f"{limits.workspace_bytes // MIB} MiB", f"{limits.tmp_bytes // MIB} MiB"
    words = {
        "exited": f"ended with {run.exit_code}",
        "signalled": f"was ended by signal {signal_words(run.signal)}",
        "timed_out": f"timed out after {tests.timeout_seconds:g} s (timeout_seconds)",
        "oom_killed": f"was killed for using more memory than {limits.memory_bytes // MIB} MiB (limits.memory_mb)",
        "disk_full": f"filled the disk: {workspace} of workspace (limits.workspace_mb), {tmp} of /tmp (limits.tmp_mb)",
        "command_not_found": "is not in the sandbox image",
        "output_flooded": f"wrote more than {limits.output_cap_bytes // MIB} MiB of output and was killed; "
        "no job may write more",
    }
    return words[run.ended]


def too_much_output(run: TestRun, limits: Limits) -> str:
    """That output was left out of the middle, as the end of a sentence that begins with the command."""
    kept, wrote = limits.output_bytes // KIB, -(-run.output_bytes // KIB)
    return f"wrote {wrote} KiB of output, more than the {kept} KiB that are kept (limits.output_kb raises it)"


def signal_words(number: int | None) -> str:
    """A signal by number and, where it has one, name."""
    try:
        return f"{number} ({signal.Signals(number or 0).name})"
    except ValueError:
        return str(number)
