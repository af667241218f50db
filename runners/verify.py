"""The verify step: the host's own look at a tree, in fresh sandboxes that the agent never saw.

On the base it shows that the environment is red before any work is paid for; on the head it decides whether the job is
done. The model has no part in it, and neither has anything that an agent wrote beyond the tree itself. A verdict is
bound to its tree. What the environment did wrong and what the agent did wrong are different reasons; a sandbox that
can't be had is neither, and is tried again.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from ledger.errors import Permanent
from ledger.objects import ObjectMissing, get_object
from ledger.records.job import Acceptance, Reason, Tests
from ledger.records.step import Claim, Completion, Event, NextStep
from ledger.records.verdict import IdCounts, TestOutcome, TestRun, Verdict
from runners.command import CommandInvalid, job_limits
from runners.ends import ended, step_work
from runners.guarded import hides_a_module, is_a_test, protected_changes
from runners.reports import outcome_of
from runners.runner import Runner
from runners.sandbox.backend import SandboxBroken
from runners.spending import OutOfBudget, SandboxTime
from runners.testrun import Reuse, TestedTree, run_tests_on
from runners.told import how_it_ended, too_much_output
from runners.workspace.diff import ChangedPath, changed_paths
from runners.workspace.errors import RefusedWorkspace
from runners.workspace.overlay import lay_over
from runners.workspace.store import Store

_SOME, _SOME_CHARS, _ID_CHARS = 5, 450, 200
SHOWN_IDS = 200
"""How many test ids a verdict names of each kind; its counts are complete."""


class _Unmet(Permanent):
    """Verification ends here, for `reason`. Only inside this module."""

    def __init__(self, reason: Reason, explanation: str) -> None:
        self.reason: Reason = reason
        self.explanation = explanation
        super().__init__(explanation)


@dataclass
class _Verification:
    """One verification, and what it has seen so far."""

    claim: Claim
    runner: Runner
    store: Store
    tree: str
    time: SandboxTime
    candidate: TestRun | None = None
    acceptance: TestRun | None = None
    fail_to_pass: IdCounts = field(default_factory=IdCounts)
    pass_to_pass: IdCounts = field(default_factory=IdCounts)
    protected_changed: tuple[str, ...] = ()
    files_changed: int = 0

    @property
    def reuse(self) -> Reuse:
        """A red on the base is shared; a head may only gain by runs of others; who verifies anew wants to see it."""
        if self.claim.input.get("fresh"):
            return "none"
        return "passed" if self.claim.input.get("on") == "head" else "any"


@step_work
def verify(claim: Claim, runner: Runner) -> Completion:
    """Judges the base (`claim.input` {"on": "base"}) or the agent's head ({"on": "head"}).

    The base leads to the agent's first turn, a verified head to its publication. Raises Stopped, LeaseLost, and
    Temporary errors of what it needs.
    """
    on_head = claim.input.get("on") == "head"
    tree = claim.head_tree if on_head else claim.job.base_tree
    seen = _Verification(claim, runner, runner.workspace(claim), tree, SandboxTime(claim))
    try:
        explanation = _check_head(seen) if on_head else _check_base(seen)
    except _Unmet as unmet:
        return _completion(seen, on_head, unmet.reason, unmet.explanation)
    except (SandboxBroken, CommandInvalid) as broken:
        return _completion(seen, on_head, "environment_failed", broken.message)
    except OutOfBudget as out:
        return ended(out.reason, out.message, seen.time.amounts())
    return _completion(seen, on_head, "verified", explanation)


# -- on the base ----------------------------------------------------------------------------------------------------


def _check_base(seen: _Verification) -> str:
    acceptance = seen.claim.job.acceptance
    if acceptance is None or not acceptance.red_on_base:
        return "nothing to show on the base"
    tested = _run_acceptance(seen, acceptance)
    _require_usable(seen, tested, acceptance, "environment_failed", "on the base")
    run = tested.run
    outcomes = {test: outcome_of(run.tests, test) for test in acceptance.fail_to_pass}
    passing = [test for test, outcome in outcomes.items() if outcome == "passed"]
    absent = [test for test, outcome in outcomes.items() if outcome is None]
    if passing:
        why = f"{_some(passing)} passed without any change; what passes already belongs in pass_to_pass"
        raise _Unmet("environment_failed", f"not red on the base: {why}")
    if absent and run.exit_code == 0:
        why = f"{_some(_looked_for(absent, run))} did not run on the base, and nothing failed to explain it"
        raise _Unmet("environment_failed", why)
    if seen.pass_to_pass.not_passed:
        which = _some(_looked_for(seen.pass_to_pass.not_passed, run))
        raise _Unmet("environment_failed", f"did not pass on the base: {which}")
    how = f"; {_some(_looked_for(absent, run))} could not be collected, which counts as red" if absent else ""
    return f"red on the base: {_tests(len(outcomes))} did not pass{how}"


# -- on the head ----------------------------------------------------------------------------------------------------


def _check_head(seen: _Verification) -> str:
    job = seen.claim.job
    changes = changed_paths(seen.store, job.base_tree, seen.tree)
    seen.files_changed = len(changes)
    if not changes:
        raise _Unmet("empty_patch", "the tree is the base: nothing was changed")
    _check_protected(seen, changes)
    if job.tests is None and job.acceptance is None:
        raise _Unmet("no_tests_ran", "the job has neither tests nor acceptance")
    said = []
    rewritten = [change.path for change in changes if change.kind != "added" and is_a_test(change.path)]
    if job.tests is not None:
        said.append(_check_candidate(seen, job.tests))
    if job.acceptance is not None:
        said.append(_check_acceptance(seen, job.acceptance))
    if rewritten:
        said.append(f"the patch changes tests of the base: {_some(rewritten)}")
    return "; ".join(said)


def _check_protected(seen: _Verification, changes: list[ChangedPath]) -> None:
    job = seen.claim.job
    protected = protected_changes(seen.store, job, seen.tree, changes)
    tree = seen.tree if job.acceptance is None else _laid_over(seen, seen.tree, job.acceptance)
    protected |= {
        change.path: "would be imported in place of an acceptance test"
        for change in changes
        if change.kind == "added" and change.path not in protected and hides_a_module(seen.store, tree, change.path)
    }
    seen.protected_changed = tuple(protected)[:SHOWN_IDS]
    if protected:
        shown = _some([f"{path} ({why})" for path, why in protected.items()])
        raise _Unmet(
            "protected_path_changed",
            f"changed although protected: {shown}; what a job's patch may change of these, `protected` says with a !",
        )


def _check_candidate(seen: _Verification, tests: Tests) -> str:
    tested = run_tests_on(seen.runner, seen.claim, seen.time, seen.store, seen.tree, tests, reuse=seen.reuse)
    run = tested.run
    seen.candidate = _trimmed(run)
    _require_usable(seen, tested, tests, "verification_failed", "in the job's tests")
    if run.discovered == 0:
        raise _Unmet("no_tests_ran", "the job's test command found no tests")
    if run.passed + run.failed == 0:
        raise _Unmet("no_tests_ran", f"all {run.skipped} tests were skipped")
    if run.exit_code != 0:
        bad = [test for test, outcome in run.tests.items() if outcome in ("failed", "error")]
        which = f": {_some(bad)}" if bad else ""
        raise _Unmet("verification_failed", f"the job's tests ended with {run.exit_code}{which}")
    if run.output_truncated:
        said = too_much_output(run, job_limits(seen.claim))
        raise _Unmet("verification_failed", f"the command of the job's tests {said}")
    if run.failed:
        raise _Unmet("verification_failed", f"the tests ended with 0 and their report shows {run.failed} failures")
    return f"{run.passed} of the job's tests passed"


def _check_acceptance(seen: _Verification, acceptance: Acceptance) -> str:
    tested = _run_acceptance(seen, acceptance)
    _require_usable(seen, tested, acceptance, "acceptance_failed", "in the acceptance tests")
    not_passed, run = (*seen.fail_to_pass.not_passed, *seen.pass_to_pass.not_passed), tested.run
    if not_passed:
        raise _Unmet("acceptance_failed", f"did not pass: {_some(_looked_for(not_passed, run))}")
    if run.exit_code != 0 and not run.failed:
        why = f"the acceptance command ended with {run.exit_code}, and its report shows no failure to explain it"
        raise _Unmet("acceptance_failed", why)
    return f"{_tests(seen.fail_to_pass.passed + seen.pass_to_pass.passed, 'acceptance test')} passed"


# -- both -----------------------------------------------------------------------------------------------------------


def _run_acceptance(seen: _Verification, acceptance: Acceptance) -> TestedTree:
    tree = _laid_over(seen, seen.tree, acceptance)
    tested = run_tests_on(seen.runner, seen.claim, seen.time, seen.store, tree, acceptance, reuse=seen.reuse)
    named = (*acceptance.fail_to_pass, *acceptance.pass_to_pass)
    seen.acceptance = _trimmed(tested.run, named)
    seen.fail_to_pass = _counts(tested.run.tests, acceptance.fail_to_pass)
    seen.pass_to_pass = _counts(tested.run.tests, acceptance.pass_to_pass)
    return tested


def _laid_over(seen: _Verification, tree: str, acceptance: Acceptance) -> str:
    """`tree` with the acceptance files in place of whatever it has at their paths."""
    if acceptance.files_sha256 is None:
        return tree
    try:
        return lay_over(seen.store, tree, get_object(seen.runner.db, acceptance.files_sha256))
    except (RefusedWorkspace, ObjectMissing) as error:
        raise _Unmet("environment_failed", f"acceptance files: {error.message}") from None


def _require_usable(
    seen: _Verification, tested: TestedTree, tests: Tests | Acceptance, reason: Reason, where: str
) -> None:
    """Raises _Unmet if the run ended in another way than by itself, or without a report."""
    run = tested.run
    if run.ended != "exited":
        why = "environment_failed" if run.ended == "command_not_found" else reason
        raise _Unmet(why, f"{where}, the command {how_it_ended(run, tests, job_limits(seen.claim))}")
    if run.report != "ok":
        raise _Unmet(reason, f"the report is {run.report.replace('_', ' ')} {where}: {tested.remark}")


def _counts(tests: dict[str, TestOutcome], wanted: tuple[str, ...]) -> IdCounts:
    not_passed = tuple(test for test in wanted if outcome_of(tests, test) != "passed")
    return IdCounts(passed=len(wanted) - len(not_passed), failed=len(not_passed), not_passed=not_passed[:SHOWN_IDS])


def _trimmed(run: TestRun, named: tuple[str, ...] = ()) -> TestRun:
    """The run with the outcomes that a verdict is about: of the named tests, else of what did not pass."""
    if named:
        found = {test: outcome_of(run.tests, test) for test in named}
        kept = {test: outcome for test, outcome in found.items() if outcome is not None}
    else:
        kept = {test: outcome for test, outcome in run.tests.items() if outcome in ("failed", "error")}
    return run.model_copy(update={"tests": dict(list(kept.items())[:SHOWN_IDS])})


def _tests(number: int, noun: str = "test") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(names: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(name[:_SOME_CHARS] for name in names[:_SOME])
    return f"{shown} and {len(names) - _SOME} more" if len(names) > _SOME else shown


def _looked_for(names: list[str] | tuple[str, ...], run: TestRun) -> list[str]:
    """The ids, and with those of the first that no test of the run has, the nearest one that a test has."""
    ran = [test for test, outcome in run.tests.items() if outcome != "error"]
    shown = list(names)
    for index, name in enumerate(names[:_SOME]):
        if outcome_of(run.tests, name) is None and (near := difflib.get_close_matches(name, ran, n=1)):
            shown[index] = f"{name[:_ID_CHARS]} (not in the report; nearest is {near[0][:_ID_CHARS]})"
    return shown


def _completion(seen: _Verification, on_head: bool, reason: Reason, explanation: str) -> Completion:
    ok = reason == "verified"
    verdict = Verdict(
        on="head" if on_head else "base",
        tree=seen.tree,
        ok=ok,
        reason=reason,
        explanation=explanation,
        candidate=seen.candidate,
        acceptance=seen.acceptance,
        fail_to_pass=seen.fail_to_pass if seen.acceptance else None,
        pass_to_pass=seen.pass_to_pass if seen.acceptance else None,
        protected_changed=seen.protected_changed,
        files_changed=seen.files_changed,
    ).plain()
    body = {key: verdict[key] for key in ("on", "tree", "ok", "reason", "explanation")}
    follows = NextStep(kind="publish", input={"tree": seen.tree}) if on_head else NextStep(kind="decide")
    return Completion(
        result=verdict,
        spent=seen.time.amounts(),
        next=follows if ok else None,
        end=None if ok else reason,
        job_state="publishing" if ok and on_head else None,
        events=(Event(kind="verification", body=body),),
        verdict=verdict if on_head or not ok else None,
    )
