"""What a decide step ends with: one decision of the model, and what the call took."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ledger.records.base import Record


class Usage(Record):
    """What one model call took, as its provider counted it."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cost_microusd: int = Field(default=0, ge=0)


class Decision(Record):
    """One decision: `plan` and `final` carry `text`, `tool` a call's name and arguments."""

    kind: Literal["plan", "tool", "final"]
    text: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}
    usage: Usage = Usage()
