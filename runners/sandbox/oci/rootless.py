"""What a user who is not root lacks here to run sandboxes without an engine.

A sandbox is held by the kernel's limits of memory, processes and processors, and those are set in a cgroup. Without
root that takes one of version 2 that was delegated to the user, with these controllers in it; on hosts of version 1
there is no such thing. What nothing bounds is no sandbox: it is refused before a runtime is asked.
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

NEEDED = ("cpu", "memory", "pids")
_IDS = 65_536


def lacking(
    uid: int, *, proc: Path = Path("/proc"), etc: Path = Path("/etc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> list[str]:
    """What is missing for `uid`, in words, and nothing where all is there."""
    return [*_user_namespaces(proc), *_ids(uid, etc), *_delegation(proc, cgroups)]


def _user_namespaces(proc: Path) -> list[str]:
    allowed = _read(proc / "sys/user/max_user_namespaces") or "0"
    forbidden = _read(proc / "sys/kernel/unprivileged_userns_clone") == "0"
    return ["user namespaces are turned off"] if forbidden or allowed == "0" else []


def _ids(uid: int, etc: Path) -> list[str]:
    missing = [name for name in ("newuidmap", "newgidmap") if shutil.which(name) is None]
    if missing:
        return [f"{' and '.join(missing)} (package uidmap)"]
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    lines = [line.split(":") for line in _read(etc / "subuid").splitlines()]
    has = any(len(line) == 3 and line[0] in (name, str(uid)) and int(line[2] or 0) >= _IDS for line in lines)
    return [] if has else [f"{_IDS} subordinate ids for {name} in {etc}/subuid"]


def _delegation(proc: Path, cgroups: Path) -> list[str]:
    if not (cgroups / "cgroup.controllers").exists():
        return ["a host of cgroup version 2: version 1 delegates no limits to users"]
    own = next((line[3:] for line in _read(proc / "self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = cgroups / own.lstrip("/")
    absent = [name for name in NEEDED if name not in _read(folder / "cgroup.controllers").split()]
    if absent:
        return [f"the cgroup controllers {', '.join(absent)}, delegated to this user"]
    return [] if os.access(folder, os.W_OK) else [f"a cgroup of its own: {folder} belongs to another"]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
