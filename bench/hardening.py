"""patchyard's sandbox as options of `docker run`, so that both systems' containers are held by the same bounds.

The options are made from the very request that patchyard sends to the engine, key by key. A key that is not known here
stops the measurement: nobody shall compare containers that are held by different bounds without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runners.sandbox.docker.connection import Connections
from runners.sandbox.docker.create import LocalImage, container
from runners.sandbox.spec import SandboxSpec

_NOTHING_TO_SAY: dict[str, Any] = {
    "Privileged": False,
    "PidMode": "",
    "OomKillDisable": False,
    "RestartPolicy": {"Name": "no"},
    "AutoRemove": False,
    # patchyard's first process reaps by itself; mini-swe-agent's is `sleep`, which needs an init to reap and to stop.
    "Init": False,
}
"""Keys that have their default, and what that is."""

_OPTIONS: dict[str, Callable[[Any], list[str]]] = {
    "NetworkMode": lambda mode: [f"--network={mode}"],
    "Dns": lambda servers: [f"--dns={server}" for server in servers],
    "DnsSearch": lambda domains: [f"--dns-search={domain}" for domain in domains],
    "ReadonlyRootfs": lambda wanted: ["--read-only"] if wanted else [],
    "CapDrop": lambda names: [f"--cap-drop={name}" for name in names],
    "IpcMode": lambda mode: [f"--ipc={mode}"],
    "Memory": lambda size: [f"--memory={size}"],
    "MemorySwap": lambda size: [f"--memory-swap={size}"],
    "NanoCpus": lambda share: [f"--cpus={share / 1e9:g}"],
    "PidsLimit": lambda most: [f"--pids-limit={most}"],
    "ShmSize": lambda size: [f"--shm-size={size}"],
    "Ulimits": lambda limits: [f"--ulimit={one['Name']}={one['Soft']}:{one['Hard']}" for one in limits],
    "Tmpfs": lambda mounts: [f"--tmpfs={path}:{options}" for path, options in mounts.items()],
    "LogConfig": lambda logs: [f"--log-driver={logs['Type']}"],
    "Runtime": lambda name: [f"--runtime={name}"],
    "CgroupParent": lambda name: [f"--cgroup-parent={name}"],
}


def run_args(folder: Path, docker_host: str, runtime: str | None = None) -> list[str]:
    """The options of `docker run`; the filter of system calls is written into `folder`."""
    connections = Connections(docker_host)
    try:
        engine = connections.facts(runtime)
    finally:
        connections.close()
    image = LocalImage(id="image", volumes=(), variables=(), knows_localhost=True)
    spec = SandboxSpec(image="sha256:" + "0" * 64, command=("true",), deadline_seconds=60, job_id=0, step_id=0, fence=0)
    request = container(spec, "bench", image, engine, runtime)
    options = [f"--user={request['User']}", f"--hostname={request['Hostname']}", "--init"]
    for key, value in request["HostConfig"].items():
        if key == "SecurityOpt":
            options += _security(value, folder)
        elif key in _OPTIONS:
            options += _OPTIONS[key](value)
        elif key not in _NOTHING_TO_SAY or _NOTHING_TO_SAY[key] != value:
            raise SystemExit(f"bench/hardening.py does not know how to tell docker run of {key}={value!r}")
    return options


def _security(told: list[str], folder: Path) -> list[str]:
    """The options; a filter given as JSON goes into a file, as the command line wants it."""
    options = []
    for one in told:
        name, _, value = one.partition("=")
        if name == "seccomp" and value.startswith("{"):
            file = folder / "seccomp.json"
            file.write_text(value)
            one = f"seccomp={file}"
        options.append(f"--security-opt={one}")
    return options
