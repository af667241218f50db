"""Amounts and times for people, and the one colour of each state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ledger.records.budget import RESOURCES, Amounts
from ledger.records.job import TERMINAL, JobState

STATE_ORDER: tuple[JobState, ...] = (
    "completed",
    "failed",
    "budget_exhausted",
    "needs_attention",
    "cancelled",
    "publishing",
    "verifying",
    "awaiting_approval",
    "running",
    "queued",
)
STATE_STYLE: Mapping[str, str] = {
    "completed": "green",
    "failed": "red",
    "budget_exhausted": "yellow",
    "needs_attention": "magenta",
    "cancelled": "bright_black",
    "publishing": "cyan",
    "verifying": "cyan",
    "awaiting_approval": "magenta",
    "running": "blue",
    "queued": "bright_black",
}
_SEEN = {
    "budget_exhausted": "out of budget",
    "needs_attention": "needs attention",
    "awaiting_approval": "awaiting approval",
}
_STATED = {"cost_microusd": "cost_usd", "sandbox_ms": "sandbox_seconds"}
_BUDGET = "budget:"


def state_words(state: str) -> str:
    """A state as people read it."""
    return _SEEN.get(state, state)


def stated_name(resource: str) -> str:
    """A resource as the batch file and people call it."""
    return _STATED.get(resource, resource)


def stated_reason(reason: str) -> str:
    """A reason with the resource as people call it: budget:cost_usd."""
    return _BUDGET + stated_name(reason.removeprefix(_BUDGET)) if reason.startswith(_BUDGET) else reason


def reason_words(
    reason: str | None,
    spent: Amounts,
    granted: Amounts,
    times: tuple[datetime | None, datetime | None, datetime | None] = (None, None, None),
) -> str:
    """A reason as people read it; where a budget ran out, with what was spent of what: budget:steps 40/40.

    `times` are those of a job's first claimed step, its end, and its deadline.
    """
    resource = (reason or "").removeprefix(_BUDGET)
    if reason is None or resource == reason:
        return reason or ""
    if resource in RESOURCES:
        return f"{stated_reason(reason)} {_part(resource, spent)}/{_part(resource, granted)}"
    start, end, deadline = times
    if start is None or end is None or deadline is None:
        return reason
    return f"{reason} {(end - start).total_seconds():.0f}/{(deadline - start).total_seconds():.0f} s"


def _part(resource: str, amounts: Amounts) -> str:
    amount = getattr(amounts, resource)
    return f"{round(amount / 1000, 1):g}" if resource == "sandbox_ms" else amount_text(resource, amount)


def amount_text(resource: str, amount: int) -> str:
    """An amount of a resource as people read it."""
    if resource == "cost_microusd":
        return usd_text(amount)
    return seconds_text(amount / 1000) if resource == "sandbox_ms" else count_text(amount)


def states_line(states: Mapping[JobState, int]) -> str:
    """How many jobs are in each state, those that are in none left out."""
    return ", ".join(f"{states[state]} {state_words(state)}" for state in STATE_ORDER if states.get(state))


def finished_of(states: Mapping[JobState, int]) -> int:
    """How many jobs have ended."""
    return sum(states.get(state, 0) for state in TERMINAL)


def seconds_text(seconds: float | None) -> str:
    """A span of time: 420 ms, 3.2 s, 4 min 5 s, 2 h 10 min."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def span_text(start: datetime | None, end: datetime | None) -> str:
    """The time between two moments, empty if one is missing."""
    return seconds_text((end - start).total_seconds()) if start and end else ""


def usd_text(microusd: int) -> str:
    """Millionths of a dollar as dollars: cents where that is enough, more digits for less."""
    usd = microusd / 1_000_000
    return f"${usd:.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.4f}"


def count_text(number: int) -> str:
    """A large number in few characters: 950, 12.3k, 4.5M."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / (1_000 if letter == 'k' else size):.1f}{letter}"
    return str(number)


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 job, 2 jobs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def spend_text(spent: Amounts) -> str:
    """What was spent, in a few words."""
    tokens = f"{count_text(spent.input_tokens)} in, {count_text(spent.output_tokens)} out"
    return f"{usd_text(spent.cost_microusd)}, tokens {tokens}, sandboxes {seconds_text(spent.sandbox_ms / 1000)}"


def time_text(moment: datetime | None) -> str:
    """A moment in the reader's own time zone, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else ""
