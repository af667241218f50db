"""The contracts of the tools: what a model may call, with what, to what effect and at what price.

One closed pydantic model for each tool's arguments gives both the JSON Schema (2020-12) that a model is shown and the
validation of what it sends, so that the two cannot disagree. Validation is strict: "5" is not 5. A contract's cost is
an upper bound, because it is what an account holds before the tool runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema

from ledger.records.base import Record, canonical_json
from ledger.records.budget import Amounts
from ledger.records.job import JobSpec
from ledger.records.tool import Effect
from policy.errors import ToolFailure

SANDBOX_GRACE_MS = 5_000
"""What a sandbox may take beyond its command's time limit until it is dead, in milliseconds."""
ABSENT = "absent"
"""The version of a path at which there is no file."""

Risk = Literal["low", "medium", "high"]
Idempotency = Literal["pure", "deterministic", "contained"]
Path = Annotated[str, Field(min_length=1, max_length=4_096, description="Path relative to the repository's root.")]
Glob = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1_000,
        description="Only paths that match this pattern, in gitignore's syntax, e.g. src/** or *.py.",
    ),
]


class ListFiles(Record):
    """Arguments of list_files."""

    path: str = Field(default="", max_length=4_096, description="Folder to list; empty is the repository's root.")
    glob: Glob = "**"
    depth: int | None = Field(
        default=None, ge=1, le=100, description="Show folders below this many levels as one entry each."
    )
    max_entries: int = Field(default=500, ge=1, le=5_000)


LineRange = Annotated[
    tuple[int, int],
    Field(description="[first, last]: line numbers from 1, both inclusive."),
]


class ReadFile(Record):
    """Arguments of read_file."""

    path: Path
    lines: LineRange | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.lines is not None and not 1 <= self.lines[0] <= self.lines[1]:
            raise ValueError("lines must be [first, last] with 1 <= first <= last")
        return self


class Search(Record):
    """Arguments of search."""

    pattern: str = Field(
        min_length=1,
        max_length=1_000,
        description="A regular expression in ripgrep's syntax (no look-around, no backreferences), tried on each line.",
    )
    fixed: bool = Field(default=False, description="Take the pattern as plain text.")
    ignore_case: bool = False
    glob: Glob = "**"
    max_results: int = Field(default=100, ge=1, le=1_000)


class Edit(Record):
    """One edit of apply_patch."""

    path: Path
    version: str = Field(
        min_length=1,
        max_length=4_097,
        description="The version of the file as read_file gave it, or absent for a new file.",
    )
    new: str = Field(max_length=4_000_000, description="The text that takes the place, or the new file's content.")
    old: str | None = Field(
        default=None, min_length=1, max_length=4_000_000, description="Text to replace; it occurs exactly once."
    )
    lines: tuple[int, int] | None = Field(
        default=None,
        description="[first, last]: lines to replace, both inclusive, numbered as in the version that was read; "
        "last = first - 1 inserts before first.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.version == ABSENT:
            if self.old is not None or self.lines is not None:
                raise ValueError("a new file (version: absent) has neither old nor lines")
        elif (self.old is None) == (self.lines is None):
            raise ValueError("give either old or lines")
        if self.lines is not None and not (self.lines[0] >= 1 and self.lines[1] >= self.lines[0] - 1):
            raise ValueError("lines must be [first, last] with first >= 1 and last >= first - 1")
        return self


class ApplyPatch(Record):
    """Arguments of apply_patch."""

    edits: tuple[Edit, ...] = Field(min_length=1, max_length=200)


class RunTests(Record):
    """Arguments of run_tests: none. The command is the job's."""


class RunShell(Record):
    """Arguments of run_shell."""

    command: str = Field(min_length=1, max_length=20_000, description="A command for /bin/sh, run at the root.")
    timeout_seconds: int = Field(default=60, ge=1, le=3_600)

    @model_validator(mode="after")
    def _no_nul(self) -> Self:
        if "\0" in self.command:
            raise ValueError("command must not contain a NUL character")
        return self


class ShowDiff(Record):
    """Arguments of show_diff."""

    glob: Glob = "**"


class Finish(Record):
    """Arguments of finish."""

    summary: str = Field(default="", max_length=20_000)


def _one_call(_arguments: Any, _job: JobSpec) -> Amounts:
    return Amounts(tool_calls=1)


def _test_run(_arguments: Any, job: JobSpec) -> Amounts:
    if job.tests is None:
        return Amounts(tool_calls=1)
    return Amounts(tool_calls=1, sandbox_ms=round(job.tests.timeout_seconds * 1_000) + SANDBOX_GRACE_MS)


def _shell_run(arguments: Any, _job: JobSpec) -> Amounts:
    return Amounts(tool_calls=1, sandbox_ms=arguments.timeout_seconds * 1_000 + SANDBOX_GRACE_MS)


@dataclass(frozen=True)
class ToolContract:
    """What one tool promises.

    A model is shown `name`, `description` and the schema. `effect` is what the tool may change; `idempotency` what a
    second run of the same call does: `pure` calls change nothing, `deterministic` ones lead from the same tree to the
    same tree, and what a `contained` one does stays in its sandbox until its result is judged. `cost` gives the most
    that a call may take.
    """

    name: str
    description: str
    arguments: type[Record]
    effect: Effect
    idempotency: Idempotency
    risk: Risk
    scope: str
    preconditions: tuple[str, ...] = ()
    cost: Callable[[Any, JobSpec], Amounts] = _one_call

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        schema = self.arguments.model_json_schema()
        schema.pop("description", None)
        return {"$schema": GenerateJsonSchema.schema_dialect, **schema}

    def parse(self, arguments: Mapping[str, Any]) -> Any:
        """The arguments as `self.arguments`. Raises ToolFailure EINVAL, naming the fields."""
        try:
            return self.arguments.model_validate_json(canonical_json(arguments), strict=True)
        except ValidationError as wrong:
            raise ToolFailure("EINVAL", _faults(self.name, wrong)) from None
        except (TypeError, ValueError):
            raise ToolFailure("EINVAL", f"{self.name}: the arguments are not JSON") from None


def _faults(tool: str, wrong: ValidationError) -> str:
    """The first faults, each with the field it is in."""
    faults = wrong.errors(include_url=False, include_context=False, include_input=False)
    said = []
    for fault in faults[:3]:
        field = ".".join(str(part) for part in fault["loc"])[:200]
        what = fault["msg"].removeprefix("Value error, ")
        said.append(f"{field}: {what}" if field else what)
    more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
    return f"{tool}: {'; '.join(said)}{more}"


_ALL = (
    ToolContract(
        name="list_files",
        description="List the files of the repository, with sizes.",
        arguments=ListFiles,
        effect="none",
        idempotency="pure",
        risk="low",
        scope="the agent's tree",
    ),
    ToolContract(
        name="read_file",
        description="Read a text file, or some lines of it. Gives the version that apply_patch asks for.",
        arguments=ReadFile,
        effect="none",
        idempotency="pure",
        risk="low",
        scope="the agent's tree",
        preconditions=("the path is a text file",),
    ),
    ToolContract(
        name="search",
        description="Search the lines of all text files for a pattern.",
        arguments=Search,
        effect="none",
        idempotency="pure",
        risk="low",
        scope="the agent's tree",
    ),
    ToolContract(
        name="apply_patch",
        description=(
            "Edit files and make new ones. All edits apply or none. Each edit replaces text that occurs exactly once "
            "(old) or lines by number (lines), or makes a new file (version: absent). Several edits of one file are "
            "all placed in the version that was read, and must not overlap."
        ),
        arguments=ApplyPatch,
        effect="workspace",
        idempotency="deterministic",
        risk="low",
        scope="writable and not protected paths of the agent's tree",
        preconditions=("each version is the file's present one", "each path is writable and not protected"),
    ),
    ToolContract(
        name="run_tests",
        description="Run the job's test command on the present tree in a fresh sandbox. Changes nothing.",
        arguments=RunTests,
        effect="none",
        idempotency="contained",
        risk="medium",
        scope="a sandbox of its own",
        preconditions=("the job has a test command",),
        cost=_test_run,
    ),
    ToolContract(
        name="run_shell",
        description=(
            "Run a shell command at the root of the repository in a fresh sandbox. It has no network, or the proxy "
            "that HTTPS_PROXY names. Changes of files under the root are kept, everything else is gone afterwards."
        ),
        arguments=RunShell,
        effect="workspace",
        idempotency="contained",
        risk="medium",
        scope="a sandbox of its own; writable and not protected paths of the agent's tree",
        preconditions=("what the command changes is writable and not protected",),
        cost=_shell_run,
    ),
    ToolContract(
        name="show_diff",
        description="Show what was changed so far, as a patch against the base commit.",
        arguments=ShowDiff,
        effect="none",
        idempotency="pure",
        risk="low",
        scope="the base tree and the agent's tree",
    ),
    ToolContract(
        name="finish",
        description="Say that the work is done and ask for verification. Nothing can be changed afterwards.",
        arguments=Finish,
        effect="none",
        idempotency="pure",
        risk="low",
        scope="the job",
    ),
)
CONTRACTS: dict[str, ToolContract] = {contract.name: contract for contract in _ALL}


def contract_of(name: str) -> ToolContract:
    """The contract of the tool `name`. Raises ToolFailure ENOTOOL."""
    try:
        return CONTRACTS[name]
    except KeyError:
        raise ToolFailure("ENOTOOL", f"there is no tool {name[:100]!r}; there are {', '.join(CONTRACTS)}") from None


def cost_bound(name: str, arguments: Mapping[str, Any], job: JobSpec) -> Amounts:
    """The most that the call can take; a call that will be refused takes one tool call."""
    try:
        contract = contract_of(name)
        return contract.cost(contract.parse(arguments), job)
    except ToolFailure:
        return Amounts(tool_calls=1)
