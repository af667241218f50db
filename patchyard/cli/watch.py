"""`patchyard watch`: a batch's progress until it ends.

Looking is all it does: Ctrl-C leaves the jobs running and says so. It polls a few aggregates of the ledger, the slower
the longer they take, and waits out a database that restarts.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.connect import Database
from ledger.errors import LedgerUnavailable
from ledger.reads import BatchRow, Progress, batch_progress
from patchyard.cli.console import ExitStatus, leave, say, write_data
from patchyard.cli.opened import batch_named, opened_ledger
from patchyard.cli.units import (
    STATE_ORDER,
    STATE_STYLE,
    counted,
    finished_of,
    seconds_text,
    spend_text,
    state_words,
    states_line,
)
from patchyard.printable import printable
from patchyard.results import amounts_row

if TYPE_CHECKING:
    from rich.console import RenderableType

_POLL_SECONDS = 1.0
_POLL_FACTOR = 20
"""A poll may take a twentieth of the time."""
_POLL_LATEST_SECONDS = 3.0
"""A look that had to wait for the database must not make the next one rare."""
_WINDOW_SECONDS = 60.0
_PLAIN_SECONDS = 10.0
_STILL_SECONDS = 30.0
_GIVE_UP_SECONDS = 600.0


@dataclass
class Pace:
    """Jobs a minute over the last minute, and when the rest will be done at that pace."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, finished: int) -> None:
        self._seen.append((now, finished))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_SECONDS:
            self._seen.popleft()

    def jobs_a_minute(self) -> float:
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start) * 60 if end > start else 0.0

    def eta_seconds(self, left: int) -> float | None:
        pace = self.jobs_a_minute()
        return left / pace * 60 if pace > 0 else None


def watch_batch(db: Database, batch: BatchRow, *, as_json: bool = False) -> ExitStatus:
    """Shows progress until every job has ended: DONE if all completed, else NOT_ALL_DONE; INTERRUPTED on Ctrl-C."""
    shown = printable(batch.name)
    try:
        with _display(shown, as_json) as show:
            last = _follow(db, batch, show)
    except KeyboardInterrupt:
        say(
            f"patchyard: interrupted; the jobs of {shown} go on: `patchyard watch {shown}` shows them again, "
            f"`patchyard cancel {shown}` stops them"
        )
        return ExitStatus.INTERRUPTED
    return ExitStatus.DONE if last.states.get("completed", 0) == last.total else ExitStatus.NOT_ALL_DONE


Show = Callable[[Progress, Pace], None]


def _follow(db: Database, batch: BatchRow, show: Show) -> Progress:
    pace, moved = Pace(), _Movement(printable(batch.name))
    while True:
        started = time.monotonic()
        progress = _patiently(lambda: batch_progress(db, batch.id))
        now = time.monotonic()
        finished = finished_of(progress.states)
        pace.note(now, finished)
        show(progress, pace)
        if finished == progress.total:
            return progress
        moved.note(now, progress)
        time.sleep(min(max(_POLL_SECONDS, (now - started) * _POLL_FACTOR), _POLL_LATEST_SECONDS))


def _patiently(look: Callable[[], Progress]) -> Progress:
    """The result of `look`; while the database does not answer it is asked again, ever more rarely."""
    delay, since = 0.5, None
    while True:
        try:
            found = look()
        except LedgerUnavailable as error:
            now = time.monotonic()
            if since is None:
                since = now
                say(f"patchyard: {printable(error.message)}; trying again")
            if now - since > _GIVE_UP_SECONDS:
                raise
            time.sleep(delay)
            delay = min(delay * 2, 10.0)
            continue
        if since is not None:
            say("patchyard: the database answers again")
        return found


class _Movement:
    """Says once, when nothing has moved for a while and no agent works, where to look."""

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._state: Any = None
        self._since = 0.0
        self._said = False

    def note(self, now: float, progress: Progress) -> None:
        state = (progress.states, progress.spent, progress.paused)
        if state != self._state or progress.running_agents:
            self._state, self._since = state, now
        elif not self._said and now - self._since > _STILL_SECONDS:
            self._said = True
            say(_STANDS if progress.paused else _MOVES_NOT)


_STANDS = "patchyard: it is paused; `patchyard resume` lets it go on"
_MOVES_NOT = "patchyard: nothing moves; `patchyard ps` shows whether the scheduler and the workers run"


# -- what is shown -----------------------------------------------------------------------------------------------------


@contextmanager
def _display(batch: str, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield _show_json
    elif sys.stdout.isatty():
        with _live(batch) as show:
            yield show
    else:
        yield _Plain(batch).show


def _show_json(progress: Progress, pace: Pace) -> None:
    import json

    write_data(json.dumps(progress_row(progress, pace), ensure_ascii=False) + "\n")


def progress_row(progress: Progress, pace: Pace) -> dict[str, Any]:
    """A snapshot for machines."""
    finished = finished_of(progress.states)
    return {
        "total": progress.total,
        "finished": finished,
        "states": {state: progress.states.get(state, 0) for state in STATE_ORDER},
        "running_agents": progress.running_agents,
        "paused": progress.paused,
        "spent": amounts_row(progress.spent),
        "granted": amounts_row(progress.granted),
        "jobs_a_minute": round(pace.jobs_a_minute(), 2),
        "eta_seconds": pace.eta_seconds(progress.total - finished),
    }


class _Plain:
    """A line when something changed, ten seconds apart at least, and one at the end."""

    def __init__(self, batch: str) -> None:
        self._batch, self._last = batch, float("-inf")
        self._states: Any = None

    def show(self, progress: Progress, pace: Pace) -> None:
        now, finished = time.monotonic(), finished_of(progress.states)
        ended = finished == progress.total
        seen = (progress.states, progress.paused)
        if not ended and (seen == self._states or now - self._last < _PLAIN_SECONDS):
            return
        self._last, self._states = now, seen
        print(f"{self._batch}: {_headline(progress, pace)}", flush=True)


def _headline(progress: Progress, pace: Pace) -> str:
    finished = finished_of(progress.states)
    parts = [f"{finished}/{progress.total} ended ({states_line(progress.states)})", spend_text(progress.spent)]
    if finished < progress.total:
        parts.insert(1, counted(progress.running_agents, "agent") + " at work")
        if progress.paused:
            parts.insert(1, "paused")
        parts.append(_pace_text(progress, pace))
    return ", ".join(filter(None, parts))


def _pace_text(progress: Progress, pace: Pace) -> str:
    eta = pace.eta_seconds(progress.total - finished_of(progress.states))
    if eta is None:
        return ""
    return f"{pace.jobs_a_minute():.1f} jobs/min, about {seconds_text(eta)} left"


@contextmanager
def _live(batch: str) -> Iterator[Show]:
    from rich.live import Live

    from patchyard.cli.console import output

    with Live(console=output(), refresh_per_second=4, transient=False) as live:

        def show(progress: Progress, pace: Pace) -> None:
            live.update(frame(batch, progress, pace), refresh=True)

        yield show


def frame(batch: str, progress: Progress, pace: Pace) -> RenderableType:
    """One picture: a bar for each state that has jobs, and a line of what is spent and how fast it goes."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bars = Table.grid(padding=(0, 1))
    bars.add_column(min_width=17)
    bars.add_column()
    bars.add_column(justify="right")
    finished = finished_of(progress.states)
    rows = [("ended", finished, "bold")]
    rows += [(state_words(state), progress.states.get(state, 0), STATE_STYLE[state]) for state in STATE_ORDER]
    for name, number, style in rows:
        if number or name == "ended":
            bar = ProgressBar(
                total=progress.total, completed=number, width=40, complete_style=style, finished_style=style
            )
            bars.add_row(Text(name, style=style), bar, Text(f"{number}/{progress.total}"))
    work = f"{counted(progress.running_agents, 'agent')} at work, {_pace_text(progress, pace)}"
    return Group(
        Text(f"{batch}, paused" if progress.paused else batch, style="bold"),
        bars,
        Text("" if finished == progress.total else work.rstrip(", ")),
        Text(spend_text(progress.spent)),
    )


def command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's name or id.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")] = False,
) -> None:
    """Follow a batch until it ends. Ctrl-C stops looking; the jobs go on.

    Example: patchyard watch linkcheck-fixes
    """
    with opened_ledger() as db:
        status = watch_batch(db, batch_named(db, batch), as_json=as_json)
    leave(status)
