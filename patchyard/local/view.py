"""What of the local stack runs now: the plan and the supervisor's status, held against the kernel's word."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import psutil

from patchyard.local.home import Home
from patchyard.local.processes import SUPERVISOR, StackProcess, by_service
from patchyard.local.stack import planned_and_living
from patchyard.local.standby import STANDBY
from patchyard.settings import Settings

State = Literal["running", "restarting", "orphaned", "stopped"]


@dataclass(frozen=True)
class ServiceView:
    """One service. `orphaned` runs without a supervisor: the next `up` adopts it, and `down` stops it.

    `memory_bytes` is its processes' proportional set size: shared pages are counted once over all who share them.
    """

    service: str
    state: State
    pid: int | None
    started_at: float | None
    restarts: int
    last_exit: str
    memory_bytes: int
    log: str

    def plain(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)


def view_services(settings: Settings) -> list[ServiceView]:
    """Every service that is planned or runs, the supervisor first; empty when there is no stack."""
    home = Home(settings.home.resolve())
    plan, status, living = planned_and_living(settings)
    planned = [service.name for service in plan.services] if plan else []
    names = [SUPERVISOR, STANDBY, *planned, *dict.fromkeys(process.service for process in living)]
    if not planned and not living:
        return []
    supervised = any(process.service == SUPERVISOR for process in living)
    views = []
    for name in dict.fromkeys(names):
        known = status.services.get(name) if status else None
        own = [process for process in living if process.service == name]
        first = next((process for process in own if known and process.pid == known.pid), by_service(own, name))
        pid = first.pid if first else None
        if pid is None:
            state: State = "restarting" if supervised else "stopped"
        else:
            state = "running" if supervised else "orphaned"
        views.append(
            ServiceView(
                service=name,
                state=state,
                pid=pid,
                started_at=_started_at(pid),
                restarts=known.restarts if known else 0,
                last_exit=known.last_exit if known else "",
                memory_bytes=_memory_bytes(own, with_children=name != SUPERVISOR),
                log=str(home.log(name)),
            )
        )
    return views


def _started_at(pid: int | None) -> float | None:
    try:
        return psutil.Process(pid).create_time() if pid is not None else None
    except psutil.NoSuchProcess:
        return None


def _memory_bytes(processes: list[StackProcess], *, with_children: bool) -> int:
    total = 0
    seen: set[int] = set()
    for process in processes:
        try:
            leader = psutil.Process(process.pid)
            for each in (leader, *(leader.children(recursive=True) if with_children else ())):
                if each.pid not in seen:
                    seen.add(each.pid)
                    total += each.memory_full_info().pss
        except psutil.Error:
            continue
    return total
