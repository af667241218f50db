"""A sandbox as the engine's API takes it: the whole hardening list in one place, none of it optional.

The user, the command, the working folder and the environment replace the image's own. What an image declares beyond
them is disarmed: a health check is turned off, and a volume, which would be a folder of the host without a limit, is
covered by an empty file system.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from images import seccomp
from ledger.records.base import Record
from policy.ceilings import KIB, Limits
from runners.sandbox import wrapper
from runners.sandbox.bounds import (
    GID,
    HOSTNAME,
    READ_ONLY_PATHS,
    UID,
    file_system,
    file_systems,
    process_limit,
    resource_limits,
    shared_memory_bytes,
)
from runners.sandbox.oci.runtime import has_own_kernel, kind_of
from runners.sandbox.spec import EngineFacts, SandboxPlace

LABEL_SANDBOX, LABEL_JOB = "patchyard.sandbox", "patchyard.job"
LABEL_STEP, LABEL_FENCE = "patchyard.step", "patchyard.fence"
LABEL_OWNER = "patchyard.owner"

CGROUPS = "/sys/fs/cgroup"
CONTROLLERS = (
    "blkio", "cpu", "cpuacct", "cpu,cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc", "net_cls",
    "net_cls,net_prio", "net_prio", "perf_event", "pids", "rdma", "systemd", "unified",
)  # fmt: skip
"""What the folders of version 1 are called. A runtime leaves out what is not there."""


class LocalImage(Record):
    """An image as an engine has it. `volumes` are the paths that it declares as such, `variables` the
    names of those that it sets, `knows_localhost` says that
    it resolves that name without an /etc/hosts."""

    id: str
    architecture: str = ""
    volumes: tuple[str, ...]
    variables: tuple[str, ...]
    knows_localhost: bool


def container(
    spec: SandboxPlace, owner: str, image: LocalImage, engine: EngineFacts, runtime: str | None
) -> dict[str, Any]:
    """The body of `POST /containers/create`, see the Engine API, but for the sandbox's name.

    Raises Unfit for an unknown architecture.
    """
    command = wrapper.argv(engine.architecture, spec.armed_seconds, proxied=spec.network is not None)
    return {
        "Image": image.id,
        "Entrypoint": command[:1],
        "Cmd": command[1:],
        "User": f"{UID}:{GID}",
        "WorkingDir": "/",
        "Env": _environment(image.variables),
        "Hostname": HOSTNAME,
        "Labels": {
            LABEL_OWNER: owner,
            LABEL_JOB: str(spec.job_id),
            LABEL_STEP: str(spec.step_id),
            LABEL_FENCE: str(spec.fence),
        },
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        # Nothing but a loopback either way; disabled, the engine saves itself the making of hosts and resolver files.
        "NetworkDisabled": image.knows_localhost,
        "StopSignal": "SIGKILL",
        "HostConfig": _host_config(spec.limits, image.volumes, engine, runtime),
    }


def _host_config(limits: Limits, volumes: Iterable[str], engine: EngineFacts, runtime: str | None) -> dict[str, Any]:
    return {
        "NetworkMode": "none",
        # Without it the engine copies the host's resolver into the container, network or not.
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={_profile(engine.architecture)}"],
        "Privileged": False,
        "IpcMode": "private",
        "PidMode": "",
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "OomKillDisable": False,
        "NanoCpus": round(limits.cpus * 1_000_000_000),
        "PidsLimit": process_limit(limits, own_kernel=has_own_kernel(engine.runtime)),
        "ShmSize": shared_memory_bytes(limits),
        "Ulimits": _ulimits(limits),
        "Tmpfs": _file_systems(limits, volumes),
        "Init": False,
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        **_sealed_cgroups(engine),
        **({"Runtime": runtime} if runtime else {}),
    }


def _sealed_cgroups(engine: EngineFacts) -> dict[str, Any]:
    """Where version 1 has a folder for each controller, they are in a tmpfs, and crun lets everybody write in it."""
    if engine.cgroup_version != 1 or kind_of(engine.runtime) != "crun":
        return {}
    return {"ReadonlyPaths": [*READ_ONLY_PATHS, CGROUPS, *(f"{CGROUPS}/{name}" for name in CONTROLLERS)]}


def _environment(of_image: Iterable[str]) -> list[str]:
    """Ours, and the image's own variables unset (a name without a value): what LD_PRELOAD or PERL5OPT would do to the
    sandbox's first process is not for an image to say."""
    ours = [f"{name}={value}" for name, value in wrapper.ENVIRONMENT.items()]
    return ours + [name for name in of_image if name not in wrapper.ENVIRONMENT]


def _ulimits(limits: Limits) -> list[dict[str, Any]]:
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in resource_limits(limits).items()]


def _file_systems(limits: Limits, volumes: Iterable[str]) -> dict[str, str]:
    covers = {path: file_system(64 * KIB, mode="0755") for path in volumes}
    return {
        path: f"rw,exec,nosuid,nodev,size={one.size_bytes},nr_inodes={one.inodes},mode={one.mode},uid={UID},gid={GID}"
        for path, one in (covers | file_systems(limits)).items()
    }


@cache
def _profile(architecture: str) -> str:
    return json.dumps(json.loads(seccomp.profile_text(architecture)), separators=(",", ":"))
