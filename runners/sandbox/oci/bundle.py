"""All that a runtime is told of a sandbox: the whole hardening list in one place, none of it optional.

What an image declares (user, command, working folder, environment, volumes) is not read at all. A runtime adds to this
only what every one adds: the harmless devices, and the links to the standard streams in /dev. The file is made from a
text that is kept for each image and set of limits, since only the command and the name differ from call to call.

See the OCI runtime specification, `config.md` and `config-linux.md`; masked and read-only paths are Docker's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from images import seccomp
from policy.ceilings import KIB, Limits
from runners.sandbox import wrapper
from runners.sandbox.bounds import (
    GID,
    HOSTNAME,
    READ_ONLY_PATHS,
    UID,
    file_systems,
    process_limit,
    resource_limits,
    shared_memory_bytes,
)

CPU_PERIOD_MICROSECONDS = 100_000
NO_CAPABILITIES: dict[str, list[str]] = {
    name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")
}
NAMESPACES = ("pid", "ipc", "uts", "mount", "network", "cgroup")
MASKED_PATHS = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware",
)  # fmt: skip
_ARGUMENTS, _CGROUP = "@arguments@", "@cgroup@"


@dataclass(frozen=True)
class Ground:
    """What a sandbox stands on: its root file system, and the machine's facts that its bounds depend on.
    `other_cgroups` are hierarchies to be hidden from it, None where there is but one, or the runtime shows none of this
    machine's. `binds` are folders of this machine to be seen in it, read-only: none in a sandbox that runs others'
    code. `own_kernel` says that the runtime puts a kernel of its own in between."""

    root: str
    architecture: str
    limits_swap: bool
    other_cgroups: tuple[str, ...] | None
    binds: tuple[str, ...] = ()
    own_kernel: bool = False


def config(ground: Ground, limits: Limits, arguments: list[str], cgroup: str) -> str:
    """The text of config.json. Raises Unfit for an architecture that there is no filter of system calls for."""
    text = _template(ground, limits)
    return text.replace(json.dumps(_ARGUMENTS), json.dumps(arguments)).replace(json.dumps(_CGROUP), json.dumps(cgroup))


@lru_cache(maxsize=64)
def _template(ground: Ground, limits: Limits) -> str:
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": _process(limits),
            "root": {"path": ground.root, "readonly": True},
            "hostname": HOSTNAME,
            "mounts": [*_mounts(limits), *_sealed_cgroups(ground), *map(_bind, ground.binds)],
            "linux": {
                "namespaces": [{"type": kind} for kind in NAMESPACES],
                "cgroupsPath": _CGROUP,
                "resources": _resources(ground, limits),
                "rootfsPropagation": "private",
                "seccomp": json.loads(seccomp.profile_text(ground.architecture)),
                "maskedPaths": [*MASKED_PATHS, *(ground.other_cgroups or ())],
                "readonlyPaths": list(READ_ONLY_PATHS),
            },
        }
    )


def _process(limits: Limits) -> dict[str, Any]:
    return {
        "terminal": False,
        "user": {"uid": UID, "gid": GID, "umask": 0o022, "additionalGids": []},
        "args": _ARGUMENTS,
        "env": [f"{variable}={value}" for variable, value in wrapper.ENVIRONMENT.items()],
        "cwd": "/",
        "capabilities": NO_CAPABILITIES,
        "noNewPrivileges": True,
        # Said, since a worker that is protected from the kernel's choice would hand that down.
        "oomScoreAdj": 0,
        "rlimits": [
            {"type": f"RLIMIT_{name.upper()}", "soft": value, "hard": value}
            for name, value in resource_limits(limits).items()
        ],
    }


def _mounts(limits: Limits) -> Iterable[dict[str, Any]]:
    inert = ["nosuid", "noexec", "nodev"]
    yield _mount("/proc", "proc", inert)
    yield _mount("/dev", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", f"size={64 * KIB}"])
    yield _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"])
    yield _mount("/dev/shm", "tmpfs", [*inert, "mode=1777", f"size={shared_memory_bytes(limits)}"])  # noqa: S108
    yield _mount("/dev/mqueue", "mqueue", inert)
    yield _mount("/sys", "sysfs", [*inert, "ro"])
    yield _mount("/sys/fs/cgroup", "cgroup", [*inert, "ro"])
    for path, one in file_systems(limits).items():
        bounds = [f"size={one.size_bytes}", f"nr_inodes={one.inodes}"]
        yield _mount(path, "tmpfs", ["nosuid", "nodev", *bounds, f"mode={one.mode}", f"uid={UID}", f"gid={GID}"])


def _sealed_cgroups(ground: Ground) -> Iterable[dict[str, Any]]:
    """Where version 1 has a folder for each controller, runtimes put the folders into a tmpfs, and crun lets everybody
    write in it."""
    if ground.other_cgroups is not None:
        options = ["bind", "remount", "ro", "nosuid", "noexec", "nodev"]
        yield {**_mount("/sys/fs/cgroup", "bind", options), "source": "/sys/fs/cgroup"}


def _mount(path: str, kind: str, options: list[str]) -> dict[str, Any]:
    return {"destination": path, "type": kind, "source": kind, "options": options}


def _bind(folder: str) -> dict[str, Any]:
    return {"destination": folder, "type": "bind", "source": folder, "options": ["bind", "ro", "nosuid", "nodev"]}


def _resources(ground: Ground, limits: Limits) -> dict[str, Any]:
    """A runtime takes `swap` for memory and swap together, as Docker does: equal to the limit it means none."""
    memory: dict[str, Any] = {"limit": limits.memory_bytes, "disableOOMKiller": False}
    if ground.limits_swap:
        memory["swap"] = limits.memory_bytes
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": memory,
        "cpu": {"quota": round(limits.cpus * CPU_PERIOD_MICROSECONDS), "period": CPU_PERIOD_MICROSECONDS},
        "pids": {"limit": process_limit(limits, own_kernel=ground.own_kernel)},
    }
