"""`patchyard show`: everything about one job on one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.afterwards import ActionRow, job_actions
from ledger.connect import Database
from ledger.reads import AgentRow, JobRow, SandboxHistory, StepRow, job_agents, job_sandboxes, job_steps
from ledger.records.budget import RESOURCES
from ledger.records.source import SourceRef
from patchyard.cli.console import output, print_json, print_line, print_rows, table
from patchyard.cli.opened import job_named, opened_ledger
from patchyard.cli.story import step_words, time_spent
from patchyard.cli.units import (
    amount_text,
    count_text,
    counted,
    reason_words,
    seconds_text,
    span_text,
    spend_text,
    state_words,
    stated_name,
    stated_reason,
    time_text,
    usd_text,
)
from patchyard.printable import printable, printable_lines
from patchyard.results import amounts_row

if TYPE_CHECKING:
    from rich.tree import Tree

_ISSUE_LINES = 12
_NOT_PASSED = 10
_ID_DIGITS = 12


@dataclass(frozen=True)
class Job:
    """A job with all that the ledger has of it."""

    row: JobRow
    agents: list[AgentRow]
    steps: list[StepRow]
    sandboxes: list[SandboxHistory]
    actions: list[ActionRow]


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="BATCH/JOB, or a job's id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """One job: its agents and their budgets, its steps, its verdict, why it stopped, and where its time went.

    Example: patchyard show linkcheck-fixes/linkcheck-1
    """
    with opened_ledger() as db:
        found = read_job(db, job)
    if as_json:
        print_json(job_json(found))
    else:
        _print_job(found)


def read_job(db: Database, ref: str) -> Job:
    """The job with its agents, steps and sandboxes. BadInput if there is none."""
    row = job_named(db, ref)
    return Job(row, job_agents(db, row.id), job_steps(db, row.id), job_sandboxes(db, row.id), job_actions(db, row.id))


def job_json(job: Job) -> dict[str, Any]:
    """A job for machines."""
    row = job.row.model_dump(mode="json")
    return {
        "batch": row.pop("batch_name"),
        "job": row.pop("key"),
        **row,
        "agents": [agent.model_dump(mode="json") for agent in job.agents],
        "steps": [step.model_dump(mode="json") for step in job.steps],
        "sandboxes": [sandbox.model_dump(mode="json") for sandbox in job.sandboxes],
        "actions": [action.model_dump(mode="json") for action in job.actions],
        "seconds": time_spent(job.steps),
    }


def _print_job(job: Job) -> None:
    row, spec = job.row, job.row.spec
    print_line(f"{printable(row.batch_name)}/{printable(row.key)} (job {row.id}): {_end_words(job)}")
    facts = [
        ("repository", _source_words(spec.source)),
        ("base", printable(spec.base_commit)),
        ("image", f"{printable(spec.image_name)} ({spec.image})"),
        ("model", printable(spec.model)),
        ("submitted", time_text(row.submitted_at)),
        ("started", time_text(row.started_at)),
        ("finished", time_text(row.finished_at)),
        ("deadline", time_text(row.deadline_at) if row.finished_at is None else ""),
        ("patch", _patch_words(row)),
    ]
    for name, value in facts:
        if value:
            print_line(value, label=f"  {name:<10}  ")
    _print_lines("issue", spec.issue)
    print_accounts(job.agents)
    columns = ("seq", "step", "state", "tries", "took", "spent", "what")
    print_rows(*columns, rows=map(_step_cells, job.steps), flexible=("what",), spare=("tries", "spent"))
    print()
    for action in job.actions:
        if action.state == "uncertain":
            remedy = f"`patchyard resolve {action.action_id[:_ID_DIGITS]}` shows it"
            print_line(f"uncertain: {printable(action.tool)}; {remedy}")
    if row.verdict:
        _print_verdict(row.verdict)
    _print_times(job)
    left = [sandbox.name for sandbox in job.sandboxes if sandbox.state != "removed"]
    of_probes = sum(sandbox.purpose == "probe" for sandbox in job.sandboxes)
    probes = f" ({of_probes} of them to prove isolation)" if of_probes else ""
    print_line(f"sandboxes: {len(job.sandboxes)} in all{probes}, {len(left)} not proved dead {' '.join(left)}".rstrip())


def _end_words(job: Job) -> str:
    """The job's state, and its reason with what ran out."""
    row, root = job.row, _root(job)
    if row.reason is None or root is None:
        return state_words(row.state)
    times = (row.started_at, row.finished_at, row.deadline_at)
    return f"{state_words(row.state)}, {reason_words(row.reason, root.account.spent, root.account.granted, times)}"


def _root(job: Job) -> AgentRow | None:
    return next((agent for agent in job.agents if agent.parent_id is None), None)


def _source_words(source: SourceRef) -> str:
    package = "pypi:" if source.kind == "pypi" else ""
    return package + printable(source.location) + (f"#sha256={source.sha256}" if source.sha256 else "")


def _patch_words(row: JobRow) -> str:
    if row.patch_sha256 is None:
        return ""
    return (
        f"{counted(row.files_changed or 0, 'file')}; `patchyard patch {printable(row.batch_name)}/{printable(row.key)}`"
    )


def _print_lines(title: str, text: str) -> None:
    lines = printable_lines(text.strip())
    print(f"{title}:")
    for line in lines[:_ISSUE_LINES]:
        print_line(line, label="  ")
    if len(lines) > _ISSUE_LINES:
        print(f"  … {len(lines) - _ISSUE_LINES} more lines")
    print()


def print_accounts(agents: list[AgentRow]) -> None:
    """The agents as a tree, each with its account."""
    for root in (agent for agent in agents if agent.parent_id is None):
        output().print(_tree(root, agents))
    print()


def _tree(agent: AgentRow, agents: list[AgentRow], parent: Tree | None = None) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    goal = f": {printable(agent.goal, 80)}" if agent.goal else ""
    label = Text(f"agent {agent.id} ({printable(agent.role)}){goal}, head {agent.head_tree[:12]}")
    branch = Tree(label) if parent is None else parent.add(label)
    branch.add(table("resource", "granted", "spent", "held", "delegated", "free", rows=_account_cells(agent)))
    for child in (other for other in agents if other.parent_id == agent.id):
        _tree(child, agents, branch)
    return branch


def _account_cells(agent: AgentRow) -> Iterator[tuple[str, ...]]:
    account = agent.account
    columns = [
        amounts_row(part) for part in (account.granted, account.spent, account.held, account.delegated, account.free)
    ]
    for resource in RESOURCES:
        yield (stated_name(resource), *(amount_text(resource, column[resource]) for column in columns))


def _step_cells(step: StepRow) -> tuple[str, ...]:
    tokens = step.spent.input_tokens + step.spent.output_tokens
    spent = f"{count_text(tokens)} tokens {usd_text(step.spent.cost_microusd)}" if tokens else ""
    took = span_text(step.started_at, step.finished_at)
    return (str(step.seq), step.kind, step.state, str(step.attempt), took, spent, step_words(step))


def _print_verdict(verdict: dict[str, Any]) -> None:
    tree, reason, why = (str(verdict.get(name, "")) for name in ("on", "reason", "explanation"))
    said = f"{printable(stated_reason(reason))}: {printable(why, 500)}"
    print_line(said, label=f"verdict on the {printable(tree)}: ")
    for name in ("fail_to_pass", "pass_to_pass"):
        counts = verdict.get(name) or {}
        if counts:
            print_line(f"{name}: {counts.get('passed', 0)} passed, {counts.get('failed', 0)} did not", label="  ")
        not_passed = counts.get("not_passed") or []
        for test in not_passed[:_NOT_PASSED]:
            print_line(printable(str(test), 200), label="    did not pass: ")
    candidate = verdict.get("candidate") or {}
    if candidate:
        numbers = ", ".join(f"{candidate.get(name, 0)} {name}" for name in ("passed", "failed", "skipped"))
        print_line(f"tests of the repository: {numbers}", label="  ")
    for name, what in (("candidate", "tests of the repository"), ("acceptance", "acceptance tests")):
        run = verdict.get(name) or {}
        if run.get("reused"):
            where = " ".join(str(run[key]) for key in ("sandbox", "ran_on") if run.get(key))
            print_line(f"{what}: not run again, the same run on this tree counts ({printable(where, 200)})", label="  ")
    print()


def _print_times(job: Job) -> None:
    spent = time_spent(job.steps)
    whole = span_text(job.row.submitted_at, job.row.finished_at)
    parts = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in spent.items())
    print_line(parts + (f"; {whole} from submission to end" if whole else ""), label="time: ")
    if (root := _root(job)) is not None:
        print_line(spend_text(root.account.spent), label="spent: ")
