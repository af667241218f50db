"""What is on record of a sandbox of this backend: the bundle that the runtime was given, read back from the disk and
compared with one made anew, and the bounds that the kernel has for its cgroup.

The whole bundle is compared: what no point names is the point `nothing_else`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ledger.records.base import canonical_json, sha256_hex
from runners.sandbox.backend import Recorded

_Bundle = dict[str, Any]
_POINTS: dict[str, Callable[[_Bundle], Any]] = {
    "image": lambda bundle: bundle["root"].pop("path"),
    "command": lambda bundle: _fingerprint(bundle["process"].pop("args")),
    "user": lambda bundle: bundle["process"].pop("user"),
    "root": lambda bundle: bundle["root"].pop("readonly"),
    "capabilities": lambda bundle: bundle["process"].pop("capabilities"),
    "privileges": lambda bundle: bundle["process"].pop("noNewPrivileges"),
    "seccomp": lambda bundle: _fingerprint(bundle["linux"].pop("seccomp")),
    "memory": lambda bundle: bundle["linux"]["resources"].pop("memory"),
    "processors": lambda bundle: bundle["linux"]["resources"].pop("cpu"),
    "processes": lambda bundle: bundle["linux"]["resources"].pop("pids"),
    "per_process": lambda bundle: bundle["process"].pop("rlimits"),
    "devices": lambda bundle: [bundle["linux"]["resources"].pop("devices"), bundle["linux"].pop("devices", [])],
    "network": lambda bundle: [one for one in bundle["linux"]["namespaces"] if one["type"] == "network"],
    "namespaces": lambda bundle: bundle["linux"].pop("namespaces"),
}
"""Where each point stands in config.json; each is taken out, so that what is left is what was not named."""
_IN_MEMORY = ("tmpfs", "proc", "sysfs", "cgroup", "devpts", "mqueue")


def points(asked: str, has: str, *, runtime: str, bounds: tuple[str, str]) -> Iterator[Recorded]:
    """The points of `Backend.inspect`: two texts of config.json, and the cgroup's limits of memory and processes.

    Raises ValueError or KeyError for a record that is no bundle.
    """
    wanted, found = json.loads(asked), json.loads(has)
    limits = wanted["linux"]["resources"]
    in_force = [str(limits["memory"]["limit"]), str(limits["pids"]["limit"])]
    yield _environment(wanted, found)
    yield _mounted("file_systems", wanted, found, of_the_host=False)
    yield _mounted("host_paths", wanted, found, of_the_host=True)
    for bundle in (wanted, found):
        del bundle["process"]["env"], bundle["mounts"]
    for name, take in _POINTS.items():
        yield Recorded(name=name, asked=take(wanted), has=take(found))
    yield Recorded(name="runtime", asked=runtime, has=runtime)
    yield Recorded(name="in_force", asked=in_force, has=list(bounds))
    yield Recorded(name="nothing_else", asked=_fingerprint(wanted), has=_fingerprint(found))


def _mounted(name: str, asked: _Bundle, has: _Bundle, *, of_the_host: bool) -> Recorded:
    asked_for, found = (
        [mount for mount in bundle["mounts"] if _is_of_the_host(mount) == of_the_host] for bundle in (asked, has)
    )
    if asked_for == found:
        shown = [mount["destination"] for mount in found]
        return Recorded(name=name, asked=shown, has=shown)
    return Recorded(name=name, asked=asked_for, has=found)


def _is_of_the_host(mount: dict[str, Any]) -> bool:
    return mount["type"] not in _IN_MEMORY and "remount" not in mount["options"]


def _environment(asked: _Bundle, has: _Bundle) -> Recorded:
    """The variables with their values where those are ours; of others the name alone, which may be a secret's."""
    wanted = sorted(asked["process"]["env"])
    found = [one if one in wanted else f"{one.partition('=')[0]}=(another value)" for one in has["process"]["env"]]
    return Recorded(name="environment", asked=wanted, has=sorted(found))


def _fingerprint(value: Any) -> str:
    return f"sha256:{sha256_hex(canonical_json(value))[:16]}"
