"""One file system layer, normalised: the same packages give the same bytes, on any machine and on any day.

Left out is what names the building machine or its moment (host name, resolver, mirrors, package lists, caches, logs,
password ages) and what a sandbox must not have (devices, set-user-id bits, file capabilities, other people's
extended attributes). All files bear one time and are written in the order of their names.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from images.recipe import User
from images.rootfs import EPOCH_SECONDS

LEFT_OUT = (
    "etc/apt/*", "etc/dpkg/dpkg.cfg.d/*", "etc/fstab", "etc/hostname", "etc/machine-id", "etc/resolv.conf",
    "etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow*", "etc/gshadow*", "etc/subuid*", "etc/subgid*",
    "boot/*", "dev/*", "proc/*", "run/*", "sys/*", "tmp/*", "root/*", "home/*",
    "var/cache/*", "var/log/*", "var/tmp/*", "var/lib/apt/*", "var/lib/dpkg/*-old", "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock", "var/lib/systemd/*", "var/lib/dbus/*",
    "usr/lib/python3*/EXTERNALLY-MANAGED",
)  # fmt: skip
"""EXTERNALLY-MANAGED would refuse `pip install --user`, to protect a system that is read-only here anyway."""

CHECKED_HASH, UNCHECKED_HASH = b"\x03\0\0\0", b"\x01\0\0\0"


def write_layer(source: Path, user: User, target: Path) -> list[str]:
    """Write the normalised form of the tar file `source` to `target`; the names of its packages come back, sorted."""
    with (
        tarfile.open(source, "r:") as tree,
        tarfile.open(target, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as layer,
    ):
        members = {_name(member): member for member in tree if not _left_out(member)}
        status = tree.extractfile(members["var/lib/dpkg/status"])
        packages = sorted(_packages(status.read() if status else b""))
        added = {folder.name: folder for folder in _folders(user)}
        for name in sorted(
            members | added, key=lambda name: (members[name].islnk() if name in members else False, name)
        ):
            if name in added:
                layer.addfile(added[name])
                continue
            member = members[name]
            entry = _normal(member, name)
            data = tree.extractfile(member) if member.isreg() else None
            if data is not None:
                data = _rewritten(name, data, user, entry)
            layer.addfile(entry, data)
    return packages


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").rstrip("/") or "."


def _left_out(member: tarfile.TarInfo) -> bool:
    name = _name(member)
    return name == "." or member.isdev() or any(fnmatch(name, pattern) for pattern in LEFT_OUT)


def _normal(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = member.type, member.size if member.isreg() else 0
    entry.mode = member.mode & ~(stat.S_ISUID | stat.S_ISGID)
    entry.uid, entry.gid = member.uid, member.gid
    entry.mtime = EPOCH_SECONDS
    entry.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
    return entry


def _rewritten(name: str, data: IO[bytes], user: User, entry: tarfile.TarInfo) -> IO[bytes]:
    """The file's new content where it has one; `entry.size` follows."""
    if name == "etc/passwd":
        line = f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/sh\n"
    elif name == "etc/group":
        line = f"{user.name}:x:{user.gid}:\n"
    elif name.endswith(".pyc"):
        return io.BytesIO(_trusting(data.read()))
    else:
        return data
    content = data.read() + line.encode()
    entry.size = len(content)
    return io.BytesIO(content)


def _trusting(byte_code: bytes) -> bytes:
    """Byte code that is used without reading its source again: nothing can change a source in a read-only root."""
    if byte_code[2:4] == b"\r\n" and byte_code[4:8] == CHECKED_HASH:
        return byte_code[:4] + UNCHECKED_HASH + byte_code[8:]
    return byte_code


def _folders(user: User) -> list[tarfile.TarInfo]:
    workspace = tarfile.TarInfo("workspace")
    workspace.type, workspace.mode, workspace.mtime = tarfile.DIRTYPE, 0o755, EPOCH_SECONDS
    workspace.uid, workspace.gid = user.uid, user.gid
    return [workspace]


def _packages(status: bytes) -> Iterable[str]:
    return (line.split(": ", 1)[1] for line in status.decode().splitlines() if line.startswith("Package: "))
