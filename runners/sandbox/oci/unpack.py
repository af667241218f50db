"""A layer's files, unpacked for nobody but sandboxes: checked against the layer's digest while they are read.

The layer is not believed. No path leads out of the folder or through a link, whatever the archive says; there are no
devices, and no set-user-id or set-group-id bits. Bytes are hashed before they are looked at, and what was unpacked is
thrown away when the hash is not the one that the image's manifest names.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from pathlib import Path
from typing import IO

from runners.sandbox.backend import ImageUnavailable

_CHUNK_BYTES = 1 << 20
MOUNT_POINTS = ("proc", "dev", "sys", "tmp", "workspace")
"""Folders that the runtime mounts over. They must be there: nothing may ever be created in a root that is shared."""
_HOSTS = b"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        return data


class Unpacking:
    """One layer's way into the empty folder `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, tuple[int, int]] = {}
        self._known = {"": True}

    def layer(self, blob: Path, digest: str) -> None:
        """Unpack the uncompressed tar `blob`. Raises ImageUnavailable when it is not what `digest` says or hostile."""
        with blob.open("rb") as file:
            hashed = _Hashed(file)
            try:
                with tarfile.open(fileobj=hashed, mode="r|", bufsize=_CHUNK_BYTES) as tar:  # type: ignore[call-overload]
                    for member in tar:
                        self._take(tar, member)
            except tarfile.TarError as broken:
                raise ImageUnavailable(f"the layer {digest} is no tar archive ({broken})") from broken
            while hashed.read(_CHUNK_BYTES):
                pass
        if f"sha256:{hashed.hash.hexdigest()}" != digest:
            raise ImageUnavailable(f"the layer {digest} has other content than its name says")

    def finish(self, *, knows_localhost: bool) -> None:
        """Make the mount points, give an image that needs one its hosts file, and set the folders' times."""
        for name in MOUNT_POINTS:
            if not self._is_folder(name):
                self._make_folder(name, 0o755, 0)
        hosts = self._root / "etc/hosts"
        if not knows_localhost and self._is_folder("etc") and not os.path.lexists(hosts):
            hosts.write_bytes(_HOSTS)
        for name, (mode, mtime) in sorted(self._folders.items(), reverse=True):
            os.chmod(self._root / name, mode)
            os.utime(self._root / name, (mtime, mtime))

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = os.path.normpath(member.name).lstrip("/")
        if name == ".":
            return
        parent, _, last = name.rpartition("/")
        if last == ".." or name.startswith("../") or not self._is_folder(parent):
            raise ImageUnavailable(f"the image has a file {member.name!r} that leads out of it or through a link")
        if last.startswith(".wh."):
            raise ImageUnavailable(f"the image's only layer takes a file away: {member.name!r}")
        mode, path = member.mode & 0o1777, self._root / name
        if member.isdir():
            if not self._is_folder(name):
                self._make_folder(name, mode, int(member.mtime))
            self._folders[name] = (mode, int(member.mtime))
            os.chown(path, member.uid, member.gid)
        elif os.path.lexists(path):
            raise ImageUnavailable(f"the image has the file {member.name!r} twice")
        elif member.isreg():
            self._write(tar, member, path, mode)
        elif member.issym():
            os.symlink(member.linkname, path)
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
        elif member.islnk():
            self._link(member, path)
        # Devices and pipes have no place in a root: they are left out, as they are where images are built.

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, mode: int) -> None:
        source = tar.extractfile(member)
        assert source is not None  # noqa: S101 - a regular file has content
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            while piece := source.read(_CHUNK_BYTES):
                target.write(piece)
            target.flush()
            os.fchown(descriptor, member.uid, member.gid)
            os.fchmod(descriptor, mode)
            os.utime(descriptor, (member.mtime, member.mtime))

    def _link(self, member: tarfile.TarInfo, path: Path) -> None:
        name = os.path.normpath(member.linkname).lstrip("/")
        source = self._root / name
        if name.startswith("..") or not self._is_folder(os.path.dirname(name)) or not _is_file(source):
            raise ImageUnavailable(
                f"the image has a link {member.name!r} to {member.linkname!r}, which is no file in it"
            )
        os.link(source, path, follow_symlinks=False)

    def _make_folder(self, name: str, mode: int, mtime: int) -> None:
        try:
            os.mkdir(self._root / name, 0o700)
        except FileExistsError:
            raise ImageUnavailable(f"the image has something at /{name} that is no folder") from None
        self._folders[name] = (mode, mtime)
        self._known[name] = True

    def _is_folder(self, name: str) -> bool:
        """Whether `name` and all above it are folders and no links. Nothing that was made is ever replaced."""
        if name not in self._known:
            if not self._is_folder(os.path.dirname(name)):
                return False
            try:
                self._known[name] = stat.S_ISDIR(os.lstat(self._root / name).st_mode)
            except FileNotFoundError:
                return False
        return self._known[name]


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
