"""run_shell: a command in a sandbox, and the tree that it left behind, if that may count.

The tree is made from what the sandbox packed, checked like everything that comes from there, and judged by the same
rules as a patch. A command that was ended by us leaves nothing: half of its work is no state to go on from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.records.tool import ErrorCode
from policy.errors import ToolFailure
from policy.tools import RunShell
from runners.command import Command
from runners.sandbox.spec import SandboxResult
from runners.tools.observed import ToolLimits, shown_path, tail_of
from runners.workspace.errors import RefusedWorkspace
from runners.workspace.store import Store
from runners.workspace.stream import TreeLimits, tree_of_tar

SHELL = "/bin/sh"
_CODES: dict[str, tuple[ErrorCode, str]] = {
    "command_not_found": ("ENOCOMMAND", f"the sandbox image has no {SHELL}"),
    "timed_out": ("ETIMEDOUT", "the command did not end in time; its changes are not kept"),
    "disk_full": ("EDISK", "the disk of the sandbox is full; the changes are not kept"),
    "output_flooded": ("ETOOBIG", "the command wrote output without end and was killed; its changes are not kept"),
}


@dataclass(frozen=True)
class ShellRun:
    """A command that ended: what is shown of it, and the tree it left."""

    data: dict[str, Any]
    tree: str
    truncated: bool


def shell_command(args: RunShell) -> Command:
    """The command to run for a call."""
    return Command(argv=(SHELL, "-c", args.command), timeout_seconds=args.timeout_seconds, keep_workspace=True)


def shell_run(store: Store, tree: str, result: SandboxResult, limits: ToolLimits, tree_limits: TreeLimits) -> ShellRun:
    """What the command did to `tree`.

    Raises ToolFailure ENOCOMMAND, ETIMEDOUT, EDISK, ETOOBIG or EPATH, with what can be shown of the command.
    """
    data: dict[str, Any] = {
        "exit_code": result.exit_code,
        "ended": result.ended,
        **({"signal": result.signal} if result.signal is not None else {}),
        "output_tail": tail_of(result.output, limits.output_tail_bytes),
        "output_bytes": result.output_bytes,
        "run_ms": result.timings.run_ms,
    }
    if result.ended in _CODES:
        code, message = _CODES[result.ended]
        raise ToolFailure(code, message, data=data)
    new_tree = _tree_left(store, tree, result, tree_limits, data)
    truncated = result.output_bytes > limits.output_tail_bytes
    return ShellRun(data, new_tree, truncated)


def _tree_left(store: Store, tree: str, result: SandboxResult, tree_limits: TreeLimits, data: dict[str, Any]) -> str:
    if result.workspace_sockets:
        name = shown_path(result.workspace_sockets[0])
        raise ToolFailure("EPATH", f"the command left a socket, {name}; its changes are not kept", data=data)
    if result.workspace_tar is None:
        if result.workspace_state == "too_big":
            raise ToolFailure("ETOOBIG", "the command left too much to keep; its changes are not kept", data=data)
        raise ToolFailure("EPATH", "what the command left can't be read; its changes are not kept", data=data)
    try:
        return tree_of_tar(store, tree, result.workspace_tar, tree_limits)
    except RefusedWorkspace as refused:
        code: ErrorCode = "ETOOBIG" if refused.code.startswith("too_many") else "EPATH"
        raise ToolFailure(code, f"{refused.message}; the changes are not kept", data=data) from None
