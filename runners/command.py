"""One command of a job in one sandbox: its limits from the job, its time from the step, its end as a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from ledger.errors import BadInput, Permanent
from ledger.records.step import Claim
from policy.ceilings import Limits, limits_of
from policy.network import Ceiling
from runners.runner import Runner, Stopped
from runners.sandbox.backend import ImageUnavailable, NoNetwork, NotArmed
from runners.sandbox.orders import Changes
from runners.sandbox.probe import ProbeStopped
from runners.sandbox.spec import NetworkGrant, SandboxResult, SandboxSpec
from runners.spending import OutOfBudget, SandboxTime
from runners.workspace.changes import changes_between
from runners.workspace.errors import ObjectUnreadable
from runners.workspace.store import Store
from runners.workspace.stream import tar_chunks


class CommandInvalid(Permanent):
    """This command, or a limit of this job, is none that a sandbox can have."""


@dataclass(frozen=True)
class Command:
    """What to run: `reports` are absolute paths to bring out, `keep_workspace` brings the workspace out too."""

    argv: Sequence[str]
    timeout_seconds: float
    reports: tuple[str, ...] = ()
    keep_workspace: bool = False


def run_command(
    runner: Runner, claim: Claim, time: SandboxTime, store: Store, tree: str, command: Command
) -> SandboxResult:
    """Runs `command` over the files of `tree` in a fresh sandbox, once its isolation is proved.

    An image that was evicted is brought back once. Raises IsolationUnverified, OutOfBudget when the budget cut it
    short, Stopped, CommandInvalid, NoNetwork, and what the backend raises.
    """
    try:
        return _run(runner, claim, time, store, tree, command)
    except ImageUnavailable:
        if not runner.restock(claim.job.image):
            raise
        return _run(runner, claim, time, store, tree, command)


def _run(runner: Runner, claim: Claim, time: SandboxTime, store: Store, tree: str, command: Command) -> SandboxResult:
    network = network_of(claim, runner.network)
    try:
        probe_id = runner.isolation.require(runner.db, runner.backend, claim, runner.cancelled)
    except ProbeStopped:
        raise Stopped(time.amounts()) from None
    allowed = time.allow(command.timeout_seconds)
    spec = _spec(claim, command, allowed.deadline_ms, probe_id, network)
    result = _in_sandbox(runner, spec, store, tree)
    time.took(result.timings.run_ms)
    if result.cancelled:
        raise Stopped(time.amounts())
    if result.timed_out and allowed.cut_by is not None:
        raise OutOfBudget(allowed.cut_by)
    return result


def _in_sandbox(runner: Runner, spec: SandboxSpec, store: Store, tree: str) -> SandboxResult:
    """In the one that was armed for this job, told what has changed since; else in one that is started now."""
    ready = runner.armoury.take(spec) if runner.armoury is not None else None
    if ready is not None:
        try:
            gone, pieces = changes_between(store, ready.tree, tree)
            return ready.sandbox.fire(spec, Changes(gone, pieces), runner.cancelled)
        except NotArmed:
            pass  # it ended while it waited, and nothing was sent
        except ObjectUnreadable:
            ready.sandbox.discard()
            raise
    return runner.backend.run(spec, tar_chunks(store, tree), runner.cancelled)


def job_limits(claim: Claim) -> Limits:
    """The limits of the job's sandboxes. Raises CommandInvalid."""
    try:
        return limits_of(claim.job.limits)
    except BadInput as wrong:
        raise CommandInvalid(wrong.message) from None


def network_of(claim: Claim, ceiling: Ceiling) -> NetworkGrant | None:
    """What a command of this step may reach. Raises NoNetwork for what was permitted once and is not any more."""
    asked = claim.job.network
    if asked is None or (claim.kind == "verify" and not asked.verify):
        return None
    try:
        allow = tuple(map(ceiling.permit, asked.allow))
    except BadInput as beyond:
        raise NoNetwork(
            f"network {', '.join(asked.allow)} is not permitted on this worker: {beyond.what}",
            remedy="have its PATCHYARD_NETWORK_ALLOW permit it, or submit the job without",
        ) from None
    return NetworkGrant(allow=allow, private=tuple(map(str, ceiling.private)))


def _spec(claim: Claim, command: Command, deadline_ms: int, probe_id: int, network: NetworkGrant | None) -> SandboxSpec:
    limits = job_limits(claim)
    try:
        return SandboxSpec(
            network=network,
            image=claim.job.image,
            command=tuple(command.argv),
            limits=limits,
            deadline_seconds=deadline_ms / 1_000,
            job_id=claim.job_id,
            step_id=claim.step_id,
            fence=claim.fence,
            probe_id=probe_id,
            reports=command.reports,
            export_workspace=command.keep_workspace,
            workspace_export_bytes=2 * limits.workspace_bytes,
        )
    except ValidationError as wrong:
        fault = wrong.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise CommandInvalid(f"{field}: {fault['msg'].removeprefix('Value error, ')}") from None
