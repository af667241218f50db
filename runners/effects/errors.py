"""What a remote can answer, as types: who reads the type knows whether the effect is in place.

`EffectRefused` and `Temporary` are raised only where it is certain that nothing was done; everything else that can
happen to a write is `OutcomeUnknown`, after which the world is looked at. No message holds a credential.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

from ledger.errors import Permanent, Temporary, Uncertain

RefusalCode = Literal[
    "credential_missing",
    "credential_rejected",
    "not_permitted",
    "not_found",
    "gone",
    "moved",
    "protected",
    "hook_declined",
    "rejected",
    "not_json",
]


class EffectRefused(Permanent):
    """The remote refused, and nothing was done."""

    code: RefusalCode = "rejected"

    def __init__(self, where: str, said: str = "", *, code: RefusalCode | None = None) -> None:
        """`where` names the remote, `said` is its own line, made safe to show."""
        self.where, self.said, self.code = where, said, code or type(self).code
        what = inspect.cleandoc(type(self).__doc__ or "").splitlines()[0].rstrip(".")
        super().__init__(f"{where}: {what}" + (f" ({said})" if said else ""))

    def plain(self) -> dict[str, Any]:
        """The refusal as the ledger keeps it."""
        return {"code": self.code, "where": self.where, "said": self.said}


class CredentialMissing(EffectRefused):
    """There is no credential for this host."""

    code = "credential_missing"


class CredentialRejected(EffectRefused):
    """The credential was not accepted or has expired."""

    code = "credential_rejected"


class NotPermitted(EffectRefused):
    """The credential has not the right to do this."""

    code = "not_permitted"


class RemoteMissing(EffectRefused):
    """It is not there, or the credential may not see it."""

    code = "not_found"


class RemoteGone(EffectRefused):
    """It was there and is gone, or is switched off."""

    code = "gone"


class RemoteMoved(EffectRefused):
    """It has moved to another address; name the new one."""

    code = "moved"


class NotAForge(EffectRefused):
    """The address answers with something else than a forge or a git repository would."""

    code = "not_json"


class RejectedByRemote(EffectRefused):
    """The remote does not take this."""


class RemoteUnreachable(Temporary):
    """The remote does not answer now."""


class RemoteBusy(Temporary):
    """The remote asks to try again."""


class RateLimited(Temporary):
    """The remote wants fewer requests."""


class NotMyTurn(Temporary):
    """Others write to this forge first."""


class OutcomeUnknown(Uncertain):
    """A write was sent, and its outcome did not come back."""


class AlreadyThere(OutcomeUnknown):
    """The remote says that this exists already: by whom, the world has to tell."""


class NotSettled(Temporary):
    """It is still not known what became of a write; the world is looked at again later."""


class EffectUncertain(Uncertain):
    """The world is neither as before the effect nor as after it; a person decides."""

    def __init__(self, what: str, evidence: dict[str, Any]) -> None:
        """`what` was to be done, `evidence` is what was found instead."""
        self.what, self.evidence = what, evidence
        super().__init__(f"{what}: what is there is neither the state before nor the one after; a person decides")
