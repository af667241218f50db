"""The act step: one call of the model's, from contract to observation.

The order is contract, policy, intent, effect, receipt. Whatever goes wrong with a call is an observation, with a code
of the closed list, and the agent goes on to its next turn; only what no observation can mend ends the job: a used-up
budget, an image or a repository that is not there.

The one effect of these tools is the move of the agent's head. It is written by the same transaction as the receipt, so
an intent without a receipt means that the head has not moved, and the call is simply done again: an edit leads to the
same tree, and a command's sandbox took with it what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledger.actions import action_id_of, intend
from ledger.errors import Uncertain
from ledger.faults import crash_point
from ledger.records.base import sha256_hex
from ledger.records.job import Reason
from ledger.records.step import Claim, Completion, Event, NewObject, NextStep
from ledger.records.tool import ToolCall, ToolError, ToolResult
from ledger.steps import MAX_ATTEMPTS
from policy.errors import ToolFailure, tool_error
from policy.progress import fingerprint
from policy.rules import Judgement, judge, judge_changes
from policy.tools import ToolContract, contract_of
from runners.command import CommandInvalid, job_limits, run_command
from runners.ends import step_work
from runners.runner import Runner
from runners.sandbox.backend import EngineUnavailable, SandboxBroken, SandboxLost
from runners.spending import OutOfBudget, SandboxTime
from runners.testrun import run_tests_on
from runners.tools.apply_patch import apply_patch
from runners.tools.list_files import list_files
from runners.tools.observed import Observed, shown_path
from runners.tools.read_file import read_file
from runners.tools.run_shell import shell_command, shell_run
from runners.tools.run_tests import observed_tests
from runners.tools.search import search
from runners.tools.show_diff import show_diff
from runners.workspace.diff import changed_paths
from runners.workspace.errors import InvalidPath, PackRefused
from runners.workspace.pack import pack_between
from runners.workspace.store import Store
from runners.workspace.stream import TreeLimits

SHOWN_CHANGES = 100


@dataclass
class _Act:
    """One call being done: what it is, and what has come of it so far."""

    claim: Claim
    runner: Runner
    call: ToolCall
    time: SandboxTime
    events: list[Event] = field(default_factory=list)
    objects: list[NewObject] = field(default_factory=list)
    action_id: str | None = None
    receipt: dict[str, Any] | None = None
    head_tree: str | None = None
    refs: dict[str, str] = field(default_factory=dict)


@step_work
def act(claim: Claim, runner: Runner) -> Completion:
    """Does the call in `claim.input` (a ToolCall). What follows is the agent's next turn, or for `finish` the verifier.

    Raises Stopped, Temporary errors of what it needs, and LeaseLost.
    """
    turn = _Act(claim, runner, ToolCall.model_validate(claim.input), SandboxTime(claim))
    try:
        observed = _do(turn)
    except ToolFailure as failure:
        return _completion(turn, _result(turn, error=failure.shown(), data=failure.data))
    except OutOfBudget as out:
        return _completion(turn, _result(turn, error=tool_error("EBUDGET", out.message)), end=out.reason)
    except (SandboxBroken, CommandInvalid) as broken:
        return _completion(turn, _result(turn, error=tool_error("EISOLATION", broken.message)))
    except (EngineUnavailable, SandboxLost) as away:
        if claim.attempt < MAX_ATTEMPTS:
            raise
        return _completion(turn, _result(turn, error=tool_error("EBUSY", away.message)))
    return _completion(turn, _result(turn, observed=observed))


def _do(turn: _Act) -> Observed:
    """Raises ToolFailure for whatever the model is to be told."""
    contract = contract_of(turn.call.name)
    store = turn.runner.workspace(turn.claim)
    if turn.claim.job.model.partition(":")[0] == "replay":
        turn.call = turn.call.model_copy(update={"arguments": _with_versions(store, turn)})
    args = contract.parse(turn.call.arguments)
    _require(turn, judge(turn.call, args, turn.claim.job))
    return _TOOLS[contract.name](turn, store, contract, args)


def _require(turn: _Act, judgement: Judgement, data: dict[str, Any] | None = None) -> None:
    """Writes the judgement into the job's history. Raises ToolFailure EPERM or EAPPROVAL if it is a refusal."""
    turn.events.append(judgement.event(turn.call.name, turn.call.call_id))
    if judgement.decision != "allow":
        raise ToolFailure(judgement.code, f"rule {judgement.rule}: {judgement.reason}", data=data)


# -- the tools ------------------------------------------------------------------------------------------------------


def _list_files(turn: _Act, store: Store, _contract: ToolContract, args: Any) -> Observed:
    return list_files(store, turn.claim.head_tree, args, turn.runner.limits)


def _read_file(turn: _Act, store: Store, _contract: ToolContract, args: Any) -> Observed:
    return read_file(store, turn.claim.head_tree, args, turn.runner.limits)


def _search(turn: _Act, store: Store, _contract: ToolContract, args: Any) -> Observed:
    return search(store, turn.claim.head_tree, args, turn.runner.limits)


def _show_diff(turn: _Act, store: Store, _contract: ToolContract, args: Any) -> Observed:
    return show_diff(store, turn.claim.job.base_tree, turn.claim.head_tree, args, turn.runner.limits)


def _finish(_turn: _Act, _store: Store, _contract: ToolContract, _args: Any) -> Observed:
    return Observed({"verification": "requested"})


def _apply_patch(turn: _Act, store: Store, contract: ToolContract, args: Any) -> Observed:
    head = turn.claim.head_tree
    observed = apply_patch(store, head, args, turn.runner.limits)
    _intend(turn, contract, after=observed.tree or head)
    if observed.tree is not None:
        _move_head(turn, store, observed.tree)
    crash_point("act.after_effect")
    return observed


def _run_tests(turn: _Act, store: Store, _contract: ToolContract, _args: Any) -> Observed:
    claim = turn.claim
    if claim.job.tests is None:
        raise ToolFailure("ENOTESTS", "this job has no test command")
    tested = run_tests_on(turn.runner, claim, turn.time, store, claim.head_tree, claim.job.tests, reuse="none")
    if tested.run.output_sha256:
        turn.refs["output"] = tested.run.output_sha256
    return observed_tests(tested, claim.job.tests, job_limits(claim), turn.runner.limits)


def _run_shell(turn: _Act, store: Store, contract: ToolContract, args: Any) -> Observed:
    head = turn.claim.head_tree
    _intend(turn, contract, after=None)
    result = run_command(turn.runner, turn.claim, turn.time, store, head, shell_command(args))
    _keep_output(turn, result.output)
    run = shell_run(store, head, result, turn.runner.limits, TreeLimits())
    changes = changed_paths(store, head, run.tree)
    data = run.data | {
        "changed": [{"path": shown_path(c.path), "change": c.kind} for c in changes[:SHOWN_CHANGES]],
        "files_changed": len(changes),
    }
    _require(turn, judge_changes([c.path for c in changes], turn.claim.job, risk=contract.risk), data)
    if run.tree != head:
        _move_head(turn, store, run.tree, data)
    crash_point("act.after_effect")
    return Observed(data, run.truncated or len(changes) > SHOWN_CHANGES)


_TOOLS: dict[str, Callable[[_Act, Store, ToolContract, Any], Observed]] = {
    "list_files": _list_files,
    "read_file": _read_file,
    "search": _search,
    "apply_patch": _apply_patch,
    "run_tests": _run_tests,
    "run_shell": _run_shell,
    "show_diff": _show_diff,
    "finish": _finish,
}


# -- intent, effect, receipt ----------------------------------------------------------------------------------------


def _intend(turn: _Act, contract: ToolContract, after: str | None) -> None:
    """Writes the intent, or finds it. Raises Uncertain if what is found can't be the intent of this very call."""
    claim, call = turn.claim, turn.call
    crash_point("act.before_intent")
    turn.action_id = action_id_of(claim, call.name, call.arguments)
    action = intend(
        turn.runner.db,
        claim,
        action_id=turn.action_id,
        tool=call.name,
        arguments=call.arguments,
        effect=contract.effect,
        before_tree=claim.head_tree,
        after_tree=after,
    )
    if action.state != "intended" or action.after_tree != after:
        raise Uncertain(f"{call.name} was {action.state} before, leading to {action.after_tree}, and now to {after}")
    turn.receipt = {"before": claim.head_tree, "after": claim.head_tree}
    crash_point("act.after_intent")


def _move_head(turn: _Act, store: Store, tree: str, data: dict[str, Any] | None = None) -> None:
    try:
        pack = pack_between(store, turn.claim.head_tree, tree)
    except PackRefused as refused:
        raise ToolFailure("ETOOBIG", f"{refused.message}; the changes are not kept", data=data) from None
    turn.head_tree = tree
    turn.receipt = {"before": turn.claim.head_tree, "after": tree}
    if pack:
        turn.objects.append(NewObject(kind="pack", data=pack))


def _keep_output(turn: _Act, output: bytes) -> None:
    if output:
        turn.objects.append(NewObject(kind="output", data=output))
        turn.refs["output"] = sha256_hex(output)


def _with_versions(store: Store, turn: _Act) -> dict[str, Any]:
    """The arguments with each `"version": "@PATH"` replaced by the version of PATH in the agent's tree."""

    def resolved(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: version_of(item) if key == "version" and isinstance(item, str) else resolved(item)
                for key, item in value.items()
            }
        return [resolved(item) for item in value] if isinstance(value, list) else value

    def version_of(version: str) -> str:
        if not version.startswith("@"):
            return version
        try:
            entry = store.entry(turn.claim.head_tree, version[1:])
        except InvalidPath:
            return version
        return entry.id if entry is not None else version

    arguments: dict[str, Any] = resolved(turn.call.arguments)
    return arguments


# -- the observation ------------------------------------------------------------------------------------------------


def _result(
    turn: _Act,
    *,
    observed: Observed | None = None,
    error: ToolError | None = None,
    data: dict[str, Any] | None = None,
) -> ToolResult:
    return ToolResult(
        call_id=turn.call.call_id,
        ok=error is None,
        data=observed.data if observed else data,
        error=error,
        truncated=observed.truncated if observed else False,
        refs=turn.refs,
        cost={"tool_calls": 1, "sandbox_ms": turn.time.spent_ms},
        observed_at=turn.runner.now().isoformat(timespec="milliseconds"),
    )


def _counts(result: ToolResult) -> dict[str, Any]:
    """What came of the tests, where some were run: a call can go well while what it looked at does not."""
    data = result.data or {}
    names = ("passed", "failed", "skipped")
    return {"tests": {name: data[name] for name in names}} if all(name in data for name in names) else {}


def _completion(turn: _Act, result: ToolResult, end: Reason | None = None) -> Completion:
    finished = turn.call.name == "finish" and result.ok
    follows = (
        NextStep(kind="verify", input={"on": "head"})
        if finished
        else NextStep(kind="decide", input={"observed": turn.claim.step_id})
    )
    body = {
        "tool": turn.call.name,
        "call_id": turn.call.call_id,
        "ok": result.ok,
        "code": result.error.code if result.error else None,
        "message": result.error.message if result.error else None,
        "truncated": result.truncated,
        "cost": result.cost,
        **_counts(result),
    }
    return Completion(
        result=result.plain(),
        spent=turn.time.amounts(tool_calls=1),
        next=None if end else follows,
        end=end,
        job_state="verifying" if finished else None,
        head_tree=turn.head_tree,
        objects=tuple(turn.objects),
        events=(*turn.events, Event(kind="tool_result", body=body)),
        action_id=turn.action_id,
        receipt=turn.receipt,
        mark=_mark(turn, result),
    )


def _mark(turn: _Act, result: ToolResult) -> str:
    """The turn's fingerprint: the call, what came of it, and the tree after it."""
    asked = {"tool": turn.call.name, "arguments": turn.call.arguments}
    seen = {"data": result.data, "error": result.error.plain() if result.error else None}
    denied = result.error is not None and result.error.code in ("EPERM", "EAPPROVAL")
    return fingerprint(asked, seen, turn.head_tree or turn.claim.head_tree, denied=denied)
