"""A sandbox from outside: the backend's own record of it, and what this machine's kernel says of its first process.

Inside, everything is told by the image's own programs. Here nothing of the image takes part: the record is the
engine's, and the rest are files of /proc of the machine, read while the first process waits for its input. The second
needs an engine on this machine, a runtime without a kernel of its own, and root; where it cannot be had, there are no
checks `kernel.*`, and nobody can take them for passed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from ledger.records.probe import Check
from runners.sandbox.backend import RECORDED, Inspection, Recorded
from runners.sandbox.bounds import UID
from runners.sandbox.probe import identity
from runners.sandbox.probe.places import is_known
from runners.sandbox.probe.program import FIRST_PROCESS
from runners.sandbox.probe.seen import Asked, Judge, NotObserved, Seen, few, judged_one, mounts_of, status_of
from runners.sandbox.probe.surroundings import interfaces_of, routes_of

OWN_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")
_FILES = ("status", "mountinfo", "limits", "uid_map", "net/dev", "net/route", "cgroup")
_BOUNDS = {
    # what: where version 1 has it, by its controller, and where version 2 has it
    "memory": ("memory", "memory.limit_in_bytes", "memory.max"),
    "processes": ("pids", "pids.max", "pids.max"),
}


def record_checks(inspection: Inspection | None, broken: str = "the record does not say") -> list[Check]:
    """One check a point of the record; a point that is missing has failed, and `broken` says why."""
    points = {point.name: point for point in inspection.points} if inspection is not None else {}
    names = dict.fromkeys((*RECORDED, *points))
    return [judged_one(f"record.{name}", partial(_as_asked, points.get(name), broken)) for name in names]


def _as_asked(point: Recorded | None, broken: str) -> tuple[bool, str]:
    if point is None:
        raise NotObserved(broken)
    has = json.dumps(point.has, sort_keys=True)
    if point.asked == point.has:
        return True, has
    return False, f"has {has}; asked for {json.dumps(point.asked, sort_keys=True)}"


def look_at_process(pid: int) -> dict[str, str] | None:
    """What the kernel says of a process, as observations; None where we may not look."""
    if os.geteuid() != 0:
        return None
    folder = Path(f"/proc/{pid}")
    told: dict[str, str] = {}
    for name in _FILES:
        _tell(told, f"file:{name}", (folder / name).read_text)
    for name in (*OWN_NAMESPACES, "user", "cgroup"):
        _tell(told, f"namespace:{name}", partial(os.readlink, folder / "ns" / name))
        _tell(told, f"ours:{name}", partial(os.readlink, f"/proc/self/ns/{name}"))
    with suppress(OSError):
        # A process that is at work opens and closes: what is gone before it was read is open no more.
        for descriptor in os.listdir(folder / "fd"):
            _tell(told, f"open:{descriptor}", partial(os.readlink, folder / "fd" / descriptor))
    told.update(_bounds(told.get("file:cgroup", "")))
    return told


def _tell(told: dict[str, str], name: str, read: Callable[[], str]) -> None:
    """Note one observation, if it is to be had."""
    with suppress(OSError):
        told[name] = read()


def has_begun(told: Mapping[str, str]) -> bool:
    """Whether the process is the sandbox's first by now, and not the runtime that is yet to become it."""
    return status_of(told.get("file:status", "")).get("Name") == FIRST_PROCESS


def _bounds(cgroup: str) -> dict[str, str]:
    """The limits as the kernel has them, from the side of the machine."""
    rows = [line.split(":", 2) for line in cgroup.splitlines()]
    if not rows:
        return {}
    by_controller = {controller: path for _, controllers, path in rows for controller in controllers.split(",")}
    told = {}
    for what, (controller, first_version, second_version) in _BOUNDS.items():
        if controller in by_controller:
            file = Path("/sys/fs/cgroup", controller, by_controller[controller].lstrip("/"), first_version)
        else:
            file = Path("/sys/fs/cgroup", by_controller.get("", "").lstrip("/"), second_version)
        with suppress(OSError):
            told[f"bound:{what}"] = file.read_text().strip()
    return told


def user(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The kernel's word on uid and gid, in the user namespace of whoever looks."""
    status = status_of(seen.file("status"))
    inside = [line.split() for line in seen.file("uid_map").splitlines()]
    found = {*status["Uid"].split(), *status["Gid"].split()}
    mapped = inside != [["0", "0", "4294967295"]]
    return "0" not in found and (mapped or found == {str(UID)}), f"uid and gid {' '.join(sorted(found))}"


def capabilities(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Every set is empty."""
    status = status_of(seen.file("status"))
    held = {name: status[name] for name in identity.CAPABILITY_SETS if int(status[name], 16)}
    return not held, str(held) if held else f"{', '.join(identity.CAPABILITY_SETS)}: 0"


def filtered(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """A filter of system calls is in place, and set-user-id programs give nothing."""
    status = status_of(seen.file("status"))
    found = status["Seccomp"], status["NoNewPrivs"]
    return found == ("2", "1"), f"Seccomp {found[0]}, NoNewPrivs {found[1]}"


def namespaces(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Mounts, processes, network, IPC and names are not the machine's."""
    shared = [name for name in OWN_NAMESPACES if seen[f"namespace:{name}"] == seen[f"ours:{name}"]]
    others = [f"{name} {_whose(seen, name)}" for name in ("user", "cgroup")]
    return not shared, f"shared: {few(shared) or 'none'}; {', '.join(others)}"


def _whose(seen: Seen, name: str) -> str:
    return "the machine's" if seen[f"namespace:{name}"] == seen[f"ours:{name}"] else "its own"


def mounts(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The root is read-only, and nothing of the machine is mounted."""
    found = mounts_of(seen.file("mountinfo"))
    strange = [mount.point for mount in found if not is_known(mount)]
    root = [mount for mount in found if mount.point == "/"]
    ok = not strange and len(root) > 0 and "ro" in root[-1].options
    return ok, few(strange) or f"{len(found)} mounts, the root {'read-only' if ok else 'writable'}"


def network(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """No interface but the loopback, and no route."""
    found = sorted({*interfaces_of(seen.file("net/dev"))} - {"lo"}) + routes_of(seen.file("net/route"))
    return not found, few(found) or "the loopback alone, and no route"


def open_files(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The first process holds its pipes and nothing of the machine: what a runtime forgot to close is a way out."""
    found = seen.below("open")
    strange = [target for target in found.values() if not target.startswith("pipe:") and target != "/dev/null"]
    return not strange, few(strange) or f"{len(found)}: pipes and /dev/null"


def bounds(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The limits of memory and of processes, from the side of the machine."""
    limits = asked.spec.limits
    found = seen["bound:memory"], seen["bound:processes"]
    return found == (str(limits.memory_bytes), str(limits.pids)), f"{found[0]} bytes of memory, {found[1]} processes"


CHECKS: Mapping[str, Judge] = {
    "kernel.user": user,
    "kernel.capabilities": capabilities,
    "kernel.filtered": filtered,
    "kernel.namespaces": namespaces,
    "kernel.mounts": mounts,
    "kernel.network": network,
    "kernel.open_files": open_files,
    "kernel.bounds": bounds,
}
