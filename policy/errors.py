"""The closed table of tool errors: who can mend each, whether the same call may be tried again, and what to do instead.

A failed call is an observation that a model reads, so each code says the same thing wherever it comes from. The table
is complete: a code of `ledger.records.tool.ErrorCode` without a row, or a row without a code, fails a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ledger.errors import Permanent
from ledger.records.tool import ErrorCode, ToolError

Mender = Literal["model", "world", "person", "nobody"]


@dataclass(frozen=True)
class ErrorKind:
    """One row. `retryable` says that the same call, unchanged, may succeed later."""

    mender: Mender
    retryable: bool
    suggested_action: str


ERRORS: dict[ErrorCode, ErrorKind] = {
    "EINVAL": ErrorKind("model", False, "Correct the named argument and call again."),
    "ENOTOOL": ErrorKind("model", False, "Call one of the tools that were offered."),
    "ESTALE": ErrorKind("model", False, "Read the file again and use the version that read_file gives."),
    "ENOMATCH": ErrorKind("model", False, "Read the file and copy the text to replace exactly, or give line numbers."),
    "EAMBIGUOUS": ErrorKind("model", False, "Give more of the surrounding text, or line numbers."),
    "EPATH": ErrorKind("model", False, "Use a path of a regular file, relative to the root of the repository."),
    "ENOENT": ErrorKind("model", False, "Look for the path with list_files or search."),
    "EBINARY": ErrorKind("model", False, "Leave binary files alone, or use run_shell."),
    "ETOOBIG": ErrorKind("model", False, "Ask for less: a smaller file, fewer lines, fewer edits."),
    "ENOTESTS": ErrorKind("model", False, "Check the change by reading it or with run_shell."),
    "ENOCOMMAND": ErrorKind("model", False, "Use a command that the sandbox image has."),
    "ETIMEDOUT": ErrorKind("world", True, "Try something that takes less time, or the same once more."),
    "EBUSY": ErrorKind("world", True, "Go on with something else and try again later."),
    "EPERM": ErrorKind("person", False, "Solve the task without this; the rules of the job do not allow it."),
    "EAPPROVAL": ErrorKind("person", False, "Solve the task without this; it needs a person's approval."),
    "EBUDGET": ErrorKind("nobody", False, "Nothing: the budget of the job is used up."),
    "EDISK": ErrorKind("nobody", False, "Write less: the disk of the sandbox has a fixed size."),
    "EISOLATION": ErrorKind("nobody", False, "Nothing: commands can't be run here until the sandbox is mended."),
}


class ToolFailure(Permanent):
    """A tool did not do what was asked."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        suggested_action: str | None = None,
        *,
        data: dict[str, Any] | None = None,
    ) -> None:
        """`message` says what is wrong and where; without `suggested_action` the table's is shown.

        `data` is what can be shown all the same, such as the output of a command that took too long.
        """
        super().__init__(message)
        self.code: ErrorCode = code
        self.suggested_action = suggested_action
        self.data = data

    def shown(self) -> ToolError:
        """The failure as a model is shown it."""
        return tool_error(self.code, self.message, self.suggested_action)


def tool_error(code: ErrorCode, message: str, suggested_action: str | None = None) -> ToolError:
    """The error `code` with its row of the table."""
    kind = ERRORS[code]
    return ToolError(
        code=code,
        message=message,
        retryable=kind.retryable,
        suggested_action=suggested_action or kind.suggested_action,
    )
