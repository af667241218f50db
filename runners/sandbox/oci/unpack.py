"""The files of an image's layers, unpacked for nobody but sandboxes: checked against the layers' digests while read.

No layer is believed. No path leads out of the folder or through a link, whatever the archives say; there are no
devices, and no set-user-id or set-group-id bits. Bytes are hashed as they are read, packed and unpacked, and what was
unpacked is thrown away when a hash is not the one that the image names.

Layers go in from the top down: what is there already is what an upper layer has, so nothing is ever replaced or taken
away. A lower layer's file that an upper one has, or has a whiteout for, is passed over (OCI image specification,
`layer.md`).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from images.oci_layout import GZIP_LAYER_TYPES, LAYER_TYPE, Layer
from runners.sandbox.backend import ImageUnavailable

_CHUNK_BYTES = 1 << 20
_MAX_BYTES, _MAX_FILES = 64 * 1024**3, 2_000_000
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_TAR_TYPES = (LAYER_TYPE, "application/vnd.docker.image.rootfs.diff.tar")
MOUNT_POINTS = ("proc", "dev", "sys", "tmp", "workspace")
"""Folders that the runtime mounts over. They must be there: nothing may ever be created in a root that is shared."""
_HOSTS = b"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def read_out(self) -> None:
        while self.read(_CHUNK_BYTES):
            pass


@dataclass
class _Passed:
    """What a layer adds, its files that were passed over, and what it hides of the layers below: whole names, and what
    is in its opaque folders."""

    names: set[str] = field(default_factory=set)
    passed_over: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)


class Unpacking:
    """An image's way into the empty folder `root`: its layers, the uppermost first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, tuple[int, int]] = {}
        self._implied: set[str] = set()
        self._known = {"": True}
        self._above = _Passed()
        self._now = _Passed()
        self._current: tuple[Path, Layer] | None = None
        self._bytes = self._files = 0

    def layer(self, blob: Path, layer: Layer, *, lowest: bool = True) -> None:
        """Unpack one layer. Raises ImageUnavailable when it is not what its digests say, or hostile."""
        self._now, self._current = _Passed(), (blob, layer)
        _read(blob, layer, self._take)
        if lowest and (self._now.hidden or self._now.opaque):
            taken = min(self._now.hidden | self._now.opaque)
            raise ImageUnavailable(f"the image's lowest layer takes a file away: {taken!r}")
        self._above.hidden |= self._now.hidden
        self._above.opaque |= self._now.opaque

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
        self._count(member)
        parent, _, last = name.rpartition("/")
        if last == ".." or name.startswith("../"):
            raise ImageUnavailable(f"the image has a file {member.name!r} that leads out of it")
        if self._is_hidden(name):
            self._now.passed_over.add(name)
        elif last == _OPAQUE:
            self._now.opaque.add(parent)
        elif last.startswith(_WHITEOUT):
            self._now.hidden.add(f"{parent}/{last.removeprefix(_WHITEOUT)}".lstrip("/"))
        elif not self._has_parent(parent, member) or not self._is_free(name, member):
            self._now.passed_over.add(name)
        else:
            self._now.names.add(name)
            self._place(tar, member, name)

    def _is_hidden(self, name: str) -> bool:
        """Whether an upper layer has taken this name away, or a folder that it is in."""
        if not (self._above.hidden or self._above.opaque):
            return False
        if name in self._above.hidden or "" in self._above.opaque:
            return True
        return any(above in self._above.hidden or above in self._above.opaque for above in _above(name))

    def _has_parent(self, parent: str, member: tarfile.TarInfo) -> bool:
        """Whether all above a name are folders, made where nothing is yet; False where an upper layer has a file."""
        if self._is_folder(parent):
            return True
        for folder in (*reversed(_above(parent)), parent):
            if self._is_folder(folder):
                continue
            if os.path.lexists(self._root / folder):
                if folder in self._now.names:
                    raise ImageUnavailable(f"the image has a file {member.name!r} that leads through a link")
                return False
            self._make_folder(folder, 0o755, 0)
            self._implied.add(folder)
        return True

    def _is_free(self, name: str, member: tarfile.TarInfo) -> bool:
        """Whether this layer may have the name; False where an upper layer has it."""
        path = self._root / name
        if not os.path.lexists(path):
            return True
        if member.isdir() and self._is_folder(name):
            own = name in self._now.names or name in self._implied
            self._implied.discard(name)
            return own
        if name in self._now.names:
            raise ImageUnavailable(f"the image has {member.name!r} twice in one layer")
        if name in self._implied:
            raise ImageUnavailable(f"the image has files in {member.name!r}, which is no folder in a lower layer")
        return False

    def _place(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        mode, path = member.mode & 0o1777, self._root / name
        if member.isdir():
            if not self._is_folder(name):
                self._make_folder(name, mode, int(member.mtime))
            self._folders[name] = (mode, int(member.mtime))
            os.chown(path, member.uid, member.gid)
        elif member.isreg():
            self._write(tar, member, path, mode)
        elif member.issym():
            os.symlink(member.linkname, path)
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
        elif member.islnk():
            self._link(member, path)
        # Devices and pipes have no place in a root: they are left out, as they are where images are built.

    def _count(self, member: tarfile.TarInfo) -> None:
        self._files += 1
        self._bytes += member.size if member.isreg() else 0
        if self._files > _MAX_FILES or self._bytes > _MAX_BYTES:
            raise ImageUnavailable(f"the image has more than {_MAX_FILES} files, or than {_MAX_BYTES} bytes")

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
        if name in self._now.passed_over:
            self._write_passed_over(name, path)
        elif name in self._now.names and self._is_folder(os.path.dirname(name)) and _is_file(source):
            os.link(source, path, follow_symlinks=False)
        else:
            raise ImageUnavailable(
                f"the image has a link {member.name!r} to {member.linkname!r}, which is no file in its layer"
            )

    def _write_passed_over(self, name: str, path: Path) -> None:
        """A file of this layer under the name of a link to it: its own name belongs to an upper layer."""

        def take(tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
            if member.isreg() and os.path.normpath(member.name).lstrip("/") == name and not path.exists():
                self._write(tar, member, path, member.mode & 0o1777)

        assert self._current is not None  # noqa: S101 - a layer is being read
        _read(*self._current, take)
        if not _is_file(path):
            raise ImageUnavailable(f"the image has a link to {name!r}, which is no file in its layer")

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


def _read(blob: Path, layer: Layer, take: Callable[[tarfile.TarFile, tarfile.TarInfo], None]) -> None:
    """Give each member of a layer to `take`. Raises ImageUnavailable when it is not what its digests say."""
    if layer.media_type not in (*_TAR_TYPES, *GZIP_LAYER_TYPES):
        raise ImageUnavailable(f"the layer {layer.digest} is of a kind that is not known here ({layer.media_type})")
    with blob.open("rb") as file:
        packed = _Hashed(file)
        is_packed = layer.media_type in GZIP_LAYER_TYPES
        unpacked = _Hashed(cast(IO[bytes], gzip.GzipFile(fileobj=cast(IO[bytes], packed)))) if is_packed else packed
        try:
            with tarfile.open(fileobj=unpacked, mode="r|", bufsize=_CHUNK_BYTES) as tar:  # type: ignore[call-overload]
                for member in tar:
                    take(tar, member)
            unpacked.read_out()
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as broken:
            raise ImageUnavailable(f"the layer {layer.digest} is no tar archive ({broken})") from broken
        packed.read_out()
    if (packed.digest, unpacked.digest) != (layer.digest, layer.diff_id):
        raise ImageUnavailable(f"the layer {layer.digest} has other content than its name says")


def _above(name: str) -> list[str]:
    """The folders that a name is in, the nearest first."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
