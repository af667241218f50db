"""Tool calls, their results, and the closed list of error codes that a model can be shown."""

from __future__ import annotations

from typing import Any, Literal

from ledger.records.base import Record

ErrorCode = Literal[
    "EINVAL",
    "ENOTOOL",
    "ESTALE",
    "ENOMATCH",
    "EAMBIGUOUS",
    "EPATH",
    "ENOENT",
    "EBINARY",
    "ETOOBIG",
    "ENOTESTS",
    "ENOCOMMAND",
    "ETIMEDOUT",
    "EBUSY",
    "EPERM",
    "EAPPROVAL",
    "EBUDGET",
    "EDISK",
    "EISOLATION",
]
"""Who can mend it: the model (EINVAL to ENOCOMMAND), the world with time (ETIMEDOUT, EBUSY), only a person (EPERM,
EAPPROVAL), nobody (EBUDGET, EDISK, EISOLATION)."""

Effect = Literal["none", "workspace", "external"]


class ToolCall(Record):
    """What a model proposes. It changes nothing."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolError(Record):
    """Why a call did not do what was asked, whether the same call may be tried again, and what to do instead."""

    code: ErrorCode
    message: str
    retryable: bool
    suggested_action: str


class ToolResult(Record):
    """The observation of one call, paired by `call_id`. `refs` name objects of the ledger, `cost` what it took."""

    call_id: str
    ok: bool
    data: dict[str, Any] | None = None
    error: ToolError | None = None
    truncated: bool = False
    refs: dict[str, str] = {}
    cost: dict[str, int] = {}
    observed_at: str = ""
