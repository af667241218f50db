"""What the engine has on record of a container, beside what it was asked for: one point after the other.

What was not asked for is a point too: an engine, or whoever stands between it and us, that adds a device, a mount, a
group or a capability of its own shows here, whatever the container sees of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ledger.records.base import sha256_hex
from runners.sandbox.backend import Recorded

TRANSPARENT = ("runc", "crun", "io.containerd.runc.v2")
"""Runtimes under which a container's processes are processes of the machine's own kernel."""
_NAMESPACES = ("IpcMode", "PidMode", "UTSMode", "UsernsMode", "Cgroup")
_HOST_PATHS = ("Binds", "Mounts", "VolumesFrom")
_DEVICES = ("Devices", "DeviceCgroupRules", "DeviceRequests")
_PRIVILEGES = ("Privileged", "GroupAdd", "Sysctls", "OomScoreAdj")
_MEMORY = ("Memory", "MemorySwap", "OomKillDisable", "ShmSize")
_NETWORK = ("NetworkMode", "PortBindings", "PublishAllPorts", "Links", "ExtraHosts", "Dns", "DnsSearch")


def points(asked: Mapping[str, Any], record: Mapping[str, Any], runtime: str) -> Iterator[Recorded]:
    """The points of `Backend.inspect`: `asked` is the body of the creation, `record` what the engine says now."""
    config, host, wished = record["Config"], record["HostConfig"], asked["HostConfig"]
    yield Recorded(name="image", asked=asked["Image"], has=record["Image"])
    yield Recorded(name="command", asked=_command(asked), has=_command(config))
    yield Recorded(name="user", asked=asked["User"], has=config["User"])
    yield _of("root", ("ReadonlyRootfs",), wished, host)
    yield Recorded(
        name="network",
        asked=_some(_NETWORK, wished) | {"networks": []},
        has=_some(_NETWORK, host) | {"networks": sorted({*record["NetworkSettings"]["Networks"]} - {"none"})},
    )
    yield _of("capabilities", ("CapAdd", "CapDrop"), wished, host)
    yield Recorded(
        name="privileges",
        asked=_some(_PRIVILEGES, wished) | {"options": sorted(_security(wished) - {_seccomp(wished)})},
        has=_some(_PRIVILEGES, host) | {"options": sorted(_security(host) - {_seccomp(host)})},
    )
    yield Recorded(name="seccomp", asked=_fingerprint(_seccomp(wished)), has=_fingerprint(_seccomp(host)))
    yield _of("memory", _MEMORY, wished, host)
    yield _of("processors", ("NanoCpus",), wished, host)
    yield _of("processes", ("PidsLimit",), wished, host)
    yield Recorded(name="per_process", asked=_limits(wished), has=_limits(host))
    yield _of("file_systems", ("Tmpfs",), wished, host)
    yield Recorded(
        name="host_paths",
        asked=_some(_HOST_PATHS, wished) | {"mounted": []},
        has=_some(_HOST_PATHS, host) | {"mounted": [mount.get("Destination") for mount in record.get("Mounts") or ()]},
    )
    yield _of("devices", _DEVICES, wished, host)
    wanted = {variable for variable in asked["Env"] if "=" in variable}
    yield Recorded(name="environment", asked=sorted(wanted), has=_variables(config.get("Env") or (), wanted))
    yield _of("namespaces", _NAMESPACES, wished, host)
    yield Recorded(name="runtime", asked=runtime, has=host.get("Runtime"))


def _of(name: str, keys: tuple[str, ...], asked: Mapping[str, Any], has: Mapping[str, Any]) -> Recorded:
    return Recorded(name=name, asked=_some(keys, asked), has=_some(keys, has))


def _some(keys: tuple[str, ...], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that say anything: no engine tells nothing from an empty list."""
    return {key: settings[key] for key in keys if settings.get(key)}


def _command(config: Mapping[str, Any]) -> str:
    return _fingerprint(json.dumps([*(config["Entrypoint"] or ()), *(config["Cmd"] or ())]))


def _security(settings: Mapping[str, Any]) -> set[str]:
    return set(settings.get("SecurityOpt") or ())


def _seccomp(settings: Mapping[str, Any]) -> str:
    return next((option for option in _security(settings) if option.startswith("seccomp=")), "")


def _fingerprint(text: str) -> str:
    return f"sha256:{sha256_hex(text.encode())[:16]}" if text else "none"


def _limits(settings: Mapping[str, Any]) -> dict[str, list[int]]:
    return {limit["Name"]: [limit["Soft"], limit["Hard"]] for limit in settings.get("Ulimits") or ()}


def _variables(found: Any, wanted: set[str]) -> list[str]:
    """The variables with their values where those are ours; of others the name alone, which may be a secret's."""
    return sorted(one if one in wanted else f"{one.partition('=')[0]}=(another value)" for one in found)
