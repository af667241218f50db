"""Who holds a lease, by a name that tells whether its process still lives.

A worker that is started again need not wait until the leases of its dead predecessor run out. An owner is known to be
dead when it has this worker's name, ran in this very process namespace, and no process has its number and start any
more. Of any other owner nothing is known from here: its leases run out by themselves.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import structlog

from ledger.connect import Database
from ledger.errors import LedgerUnavailable
from ledger.steps import forfeit_leases, lease_owners

log = structlog.get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def owner_of(name: str) -> str:
    """The owner of this process's leases: NAME@HOST:PID.START.NAMESPACE."""
    return f"{name}@{socket.gethostname()}:{os.getpid()}.{_start_of(os.getpid())}.{_namespace()}"


def forfeit_of_the_dead(db: Database, name: str) -> int:
    """Ends the leases that dead predecessors of this worker left; returns how many. None is ended in doubt."""
    try:
        owners = lease_owners(db, f"{name}@{socket.gethostname()}:")
        ended = sum(forfeit_leases(db, owner) for owner in owners if _is_known_dead(owner))
    except LedgerUnavailable as error:
        log.warning("predecessors_not_looked_for", why=error.message)
        return 0
    if ended:
        log.info("leases_of_a_dead_predecessor_ended", leases=ended)
    return ended


def _is_known_dead(owner: str) -> bool:
    parts = owner.rpartition(":")[2].split(".")
    if len(parts) != 3 or not parts[0].isdigit() or not parts[1] or parts[2] != _namespace() or not _namespace():
        return False
    return _start_of(int(parts[0])) != parts[1]


def _start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot (proc_pid_stat(5), field 22); empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *_, start = stat.rpartition(")")[2].split()[:20]
    return "" if state in "ZX" else start


def _namespace() -> str:
    """What tells apart the process namespaces of all hosts and boots; empty where the system does not say."""
    try:
        return f"{_BOOT_ID.read_text().strip()[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
