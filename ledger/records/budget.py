"""Amounts of the seven resources, in integers, and the budget that a batch file states.

An account keeps five amounts per resource, and `granted = spent + held + delegated + free`, each at least 0, is a CHECK
of the database. Money is in millionths of a US dollar and sandbox time in milliseconds, so that no sum is rounded.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field

from ledger.records.base import Record

RESOURCES = (
    "steps",
    "tool_calls",
    "agents",
    "input_tokens",
    "output_tokens",
    "cost_microusd",
    "sandbox_ms",
)


class Amounts(Record):
    """So much of each resource; unnamed resources are 0. The order of fields is the order in the database's type."""

    steps: int = 0
    tool_calls: int = 0
    agents: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    sandbox_ms: int = 0

    def as_tuple(self) -> tuple[int, ...]:
        """The amounts in the order of RESOURCES."""
        return tuple(getattr(self, name) for name in RESOURCES)

    @classmethod
    def of(cls, values: tuple[int, ...]) -> Self:
        """The inverse of as_tuple."""
        return cls(**dict(zip(RESOURCES, values, strict=True)))

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts.of(tuple(a + b for a, b in zip(self.as_tuple(), other.as_tuple(), strict=True)))

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts.of(tuple(a - b for a, b in zip(self.as_tuple(), other.as_tuple(), strict=True)))

    def at_most(self, other: Amounts) -> Amounts:
        """The smaller of the two, resource by resource."""
        return Amounts.of(tuple(min(a, b) for a, b in zip(self.as_tuple(), other.as_tuple(), strict=True)))


class Budget(Record):
    """A job's budget as its batch file states it.

    `steps` are decide steps (turns of the model), `tool_calls` accepted or refused calls, `sandbox_seconds` the wall
    clock of commands in sandboxes, verification included, `wall_seconds` the time from the job's first claimed step.
    """

    steps: int = Field(default=40, ge=0, le=1_000_000)
    tool_calls: int = Field(default=60, ge=0, le=1_000_000)
    agents: int = Field(default=4, ge=1, le=10_000)
    input_tokens: int = Field(default=400_000, ge=0, le=10**12)
    output_tokens: int = Field(default=40_000, ge=0, le=10**12)
    cost_usd: float = Field(default=2.0, ge=0, le=1_000_000)
    sandbox_seconds: float = Field(default=600, ge=0, le=10_000_000)
    wall_seconds: float = Field(default=900, gt=0, le=10_000_000)

    def amounts(self) -> Amounts:
        """The budget as the root account's grant."""
        return Amounts(
            steps=self.steps,
            tool_calls=self.tool_calls,
            agents=self.agents,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_microusd=round(self.cost_usd * 1_000_000),
            sandbox_ms=round(self.sandbox_seconds * 1_000),
        )
