"""What the rules say of a call, and of what a command left behind: deny over ask over allow, and deny by default.

Every rule looks at the whole call and the strictest answer counts, so the order in which rules are written changes
nothing. A job can only tighten: it names protected and writable paths, and says what becomes of `ask`. The one thing
that it can give back is what is protected in every job, see `policy.machinery`. Without a person to ask, `ask` means
deny. The functions are pure; the caller writes each judgement into the job's history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ledger.records.base import Record
from ledger.records.job import JobSpec
from ledger.records.step import Event
from ledger.records.tool import ErrorCode, ToolCall
from policy.machinery import protected_among
from policy.paths import matching
from policy.tools import ApplyPatch, Risk, contract_of

Choice = Literal["allow", "ask", "deny"]
_STRICTNESS: dict[Choice, int] = {"allow": 0, "ask": 1, "deny": 2}

RUNS_ELSEWHERE = (
    "/.github/**",
    "/.gitlab-ci.yml",
    "/.gitlab/**",
    "/.gitea/**",
    "/.forgejo/**",
    "/.circleci/**",
    "/.travis.yml",
    "/.drone.yml",
    "/.woodpecker/**",
    "/.woodpecker.yml",
    "/appveyor.yml",
    "/.appveyor.yml",
    "/azure-pipelines.yml",
    "/bitbucket-pipelines.yml",
    "Jenkinsfile",
    ".gitmodules",
    ".gitattributes",
)
"""Files that a forge, a CI service or git itself acts on, outside of any sandbox, once a patch is taken over."""


class Judgement(Record):
    """One judgement: the decision, the rule that made it, and why. `code` is what a refused call is answered with.

    `asked` says that the rule was `ask`, whatever became of it.
    """

    decision: Choice
    rule: str
    risk: Risk
    reason: str
    path: str | None = None
    asked: bool = False

    @property
    def code(self) -> ErrorCode:
        """The error code for a call that is not allowed."""
        return "EAPPROVAL" if self.asked else "EPERM"

    def event(self, what: str, call_id: str) -> Event:
        """The judgement as a line of the job's history; `what` is the tool or the thing judged."""
        body: dict[str, Any] = {"what": what, "call_id": call_id, **self.plain()}
        return Event(kind="policy_decision", body=body)


def judge(call: ToolCall, arguments: Record, job: JobSpec) -> Judgement:
    """The judgement of `call`, whose arguments are valid (`arguments` is their parsed form).

    Raises ToolFailure ENOTOOL for a tool that does not exist.
    """
    contract = contract_of(call.name)
    if isinstance(arguments, ApplyPatch):
        return judge_changes([edit.path for edit in arguments.edits], job, risk=contract.risk)
    if job.network is not None and contract.idempotency == "contained":
        where = ", ".join(job.network.allow)
        why = f"the command runs in a sandbox that reaches {where} and nothing else, as the job's network was granted"
        return _settled(job, [_allow("networked-command", "high", why)])
    if contract.effect == "none":
        return _settled(job, [_allow("effect-none", contract.risk, f"{call.name} changes nothing")])
    if contract.idempotency == "contained":
        why = "the command runs in a sandbox without network, and what it changes is judged before it counts"
        return _settled(job, [_allow("contained-command", contract.risk, why)])
    return _settled(job, [])


def judge_changes(paths: Sequence[str], job: JobSpec, *, risk: Risk) -> Judgement:
    """The judgement of a change of `paths`, proposed by a patch or made by a command. `risk` is the call's."""
    found = [_allow("workspace-write", risk, "the paths are writable and not protected")]
    found += [
        Judgement(decision="deny", rule="protected-path", risk="high", path=path, reason=_protected(job, path))
        for path in protected_among(job, paths)[:1]
    ]
    writable = set(matching(job.writable, paths))
    found += [
        Judgement(
            decision="deny",
            rule="outside-writable",
            risk="high",
            path=path,
            reason=f"{path} is not among this job's writable paths",
        )
        for path in _first(path for path in paths if path not in writable)
    ]
    found += [
        Judgement(
            decision="ask",
            rule="runs-elsewhere",
            risk="high",
            path=path,
            reason=f"{path} is acted on outside of the sandbox once the patch is taken over",
        )
        for path in matching(RUNS_ELSEWHERE, paths)[:1]
    ]
    return _settled(job, found)


def _protected(job: JobSpec, path: str) -> str:
    if matching(job.protected, (path,)):
        return f"{path} is protected in this job"
    return f"{path} decides how tests run, and is protected in every job whose `protected` does not give it back"


def _first(paths: Iterable[str]) -> list[str]:
    return [path for path, _ in zip(paths, range(1), strict=False)]


def _allow(rule: str, risk: Risk, reason: str) -> Judgement:
    return Judgement(decision="allow", rule=rule, risk=risk, reason=reason)


def _settled(job: JobSpec, found: Sequence[Judgement]) -> Judgement:
    """The strictest of `found`, or the default; `ask` is turned into what the job says of it."""
    if not found:
        return Judgement(decision="deny", rule="default", risk="high", reason="no rule allows this")
    strictest = max(found, key=lambda judgement: _STRICTNESS[judgement.decision])
    if strictest.decision != "ask":
        return strictest
    decision: Choice = "allow" if job.approvals == "allow" else "deny"
    why = "asking is allowed in advance" if decision == "allow" else "nobody is there to be asked"
    return strictest.model_copy(
        update={
            "decision": decision,
            "asked": True,
            "reason": f"{strictest.reason}; {why} (approvals: {job.approvals})",
        }
    )
