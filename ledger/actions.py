"""Actions: an accepted call with an identity, an intent before it is done and a receipt after.

The receipt is written by the completion of the step (`Completion.action_id`, `receipt`), in the transaction that moves
the head, so that the workspace and its record can't disagree.
"""

from __future__ import annotations

from typing import Any, Literal

from ledger.connect import Database
from ledger.records.base import Record, canonical_json, sha256_hex
from ledger.records.step import Claim
from ledger.records.tool import Effect
from ledger.storable import storable


class Action(Record):
    """An action as the ledger has it; `found` says that an earlier attempt had written the intent already."""

    action_id: str
    state: Literal["intended", "done", "refused", "uncertain"]
    receipt: dict[str, Any] | None
    after_tree: str | None
    found: bool


def action_id_of(claim: Claim, tool: str, arguments: dict[str, Any]) -> str:
    """The identity of an action: the same call of the same step on the same tree is the same action."""
    identity = [claim.agent_id, claim.seq, tool, arguments, claim.head_tree]
    return sha256_hex(canonical_json(storable(identity).obj))


def intend(
    db: Database,
    claim: Claim,
    *,
    action_id: str,
    tool: str,
    arguments: dict[str, Any],
    effect: Effect,
    before_tree: str,
    after_tree: str | None = None,
) -> Action:
    """Writes the intent, or finds the one that an earlier attempt wrote. LeaseLost, ActionConflict (other payload)."""
    row = db.run(
        "intend",
        step=claim.step_id,
        fence=claim.fence,
        action=action_id,
        tool=tool,
        arguments=storable(arguments),
        effect=effect,
        before=before_tree,
        after=after_tree,
    )[0]
    return Action(
        action_id=action_id,
        state=row["state"],
        receipt=row["receipt"],
        after_tree=row["after_tree"],
        found=row["was_there"],
    )
