"""The one family of errors, split by what may be done about them.

`Permanent` will fail again the same way, `Temporary` may be tried again after `retry_after_seconds`, and after
`Uncertain` nobody knows whether the effect is in place: the world has to be looked at first. The class docstring is
the default message, so that an error can be raised bare and still say something.
"""

from __future__ import annotations

import inspect


class PatchyardError(Exception):
    """Something went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or "").splitlines()[0])

    @property
    def message(self) -> str:
        return str(self.args[0])


class Permanent(PatchyardError):
    """This will fail again the same way."""


class Temporary(PatchyardError):
    """This may work when tried again later."""

    def __init__(self, message: str | None = None, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Uncertain(PatchyardError):
    """It is not known whether the effect is in place."""


class BadInput(Permanent):
    """The input is wrong."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        """`what` is wrong, `where` (file, line, field) and the `remedy`: printed as one line."""
        self.what, self.where, self.remedy = what, where, remedy
        line = f"{where}: {what}" if where else what
        super().__init__(" ".join(f"{line}; {remedy}".split()) if remedy else " ".join(line.split()))


class Unfit(Permanent):
    """This machine lacks something that the work needs (exit status 3)."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)


class LeaseLost(Permanent):
    """The lease of this step was lost: the result is thrown away."""


class IsolationUnverified(Permanent):
    """No valid probe allows this sandbox."""


class BudgetExhausted(Permanent):
    """The account cannot carry this hold."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        super().__init__(f"the account has not enough {resource} left")


class LedgerUnavailable(Temporary):
    """The database does not answer."""


class DiskFull(Temporary):
    """EDISK: the disk is full."""

    code = "EDISK"
    make_room = "make room, or set PATCHYARD_HOME to a folder on another disk"

    def __init__(self, what: str, *, remedy: str = make_room) -> None:
        """`what` says which folder has too little; the step that met it is not to blame, and waits for room."""
        self.what, self.remedy = what, remedy
        super().__init__(f"{self.code}: {what}; {remedy}", retry_after_seconds=5.0)


class NoRoom(DiskFull):
    """EDISK: there is too little room on the disk to begin: nothing was done yet."""
