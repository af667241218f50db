"""Images as folders: unpacked once per machine, and then shared by all sandboxes, which can only read them.

What makes an unpacked file hard to change: it belongs to root in a folder that only root may enter; sandboxes see it
through a read-only mount, and so does the process that starts runtimes. And what finds a change: when a process first
uses an image, every name, inode, size, mode, owner and time of change is compared with what was written down after
unpacking; the kernel sets the time of change, and no program can set it back without setting the machine's clock.

An image that nothing uses may be evicted at any time: a sandbox holds its image's use, shared with others, from before
it looks for it until it is gone.

What is not proved: that root of this machine did not go around all that, through the disk's device or with the clock;
and that a file's bytes on the disk still are what was written (the file system's own business).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from images.oci_layout import ARCHITECTURES, LOCALHOST_LABEL, LOCALHOST_RESOLVED, Layout, read_layout
from ledger.records.base import Record
from runners.disk import full_disk_told
from runners.eviction import delete, mark_used, set_aside, size_bytes
from runners.filelock import Busy, hold
from runners.sandbox import wrapper
from runners.sandbox.backend import ImageUnavailable, StoredImage
from runners.sandbox.oci.unpack import Unpacking

_NEEDED = (wrapper.INTERPRETER, "tar", "find")
_RECORD = "image.json"
_HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
_LOADING_SECONDS = 1800.0
_USE_SECONDS = 60.0


class UnpackedImage(Record):
    """An image that was unpacked. `seal` is over the metadata of its files, `lacks` what a sandbox would need."""

    name: str
    manifest: str
    config: str
    layers: tuple[str, ...]
    architecture: str
    files: int
    seal: str
    lacks: tuple[str, ...]
    size_bytes: int = 0


class Images:
    """The unpacked images in `folder`, which may be a link to one on another disk. One object serves many threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # runtimes take no root that is reached through a link
        self._lock = threading.Lock()
        self._checked: dict[str, tuple[UnpackedImage, tuple[int, int] | None]] = {}

    def root(self, image: UnpackedImage) -> Path:
        """The image's root file system."""
        return self._place(image.manifest) / "rootfs"

    def find(self, digest: str) -> UnpackedImage | None:
        """The image of a manifest digest, checked at its first use; None when it is not here, or not any more what it
        was. One that is gone or changed can be loaded again."""
        with self._lock:
            known, unpacked = self._checked.get(digest, (None, None))
            if known is None or unpacked != self._unpacked(digest):
                unpacked, known = self._unpacked(digest), self._read(digest)
                if known is None or known.seal != _seal(self.root(known)).hash:
                    self._checked.pop(digest, None)
                    return None
                self._checked[digest] = known, unpacked
            return known

    @contextmanager
    def in_use(self, digest: str) -> Iterator[None]:
        """While this is held, the image is not evicted. Raises ImageUnavailable for what is no digest."""
        use = self._use(digest)
        with hold(use, shared=True, timeout_seconds=_USE_SECONDS):
            mark_used(use)
            yield

    def stored(self) -> list[StoredImage]:
        """The images that are here."""
        found = []
        for folder in self.folder.glob("[0-9a-f]" * 64):
            if (image := self._read(f"sha256:{folder.name}")) is not None:
                size = image.size_bytes or size_bytes(folder)
                used_at = self._used_at(image.manifest)
                found.append(StoredImage(digest=image.manifest, name=image.name, size_bytes=size, used_at=used_at))
        return found

    def remove(self, digest: str, is_seen: Callable[[Path], bool]) -> bool:
        """Take an image away unless it is in use, or `is_seen` says that something has its root; whether it is gone."""
        use = self._use(digest)
        try:
            with hold(self.folder / "lock"), hold(use):
                place = self._place(digest)
                if is_seen(place):
                    return False
                if (aside := set_aside(place, self.folder)) is not None:
                    delete(aside)
                use.unlink()
        except Busy:
            return False
        return True

    def load(self, folder: Path) -> UnpackedImage:
        """Unpack the image of a layout, unless it is here. Raises BadInput for a folder that is no layout,
        ImageUnavailable for an image that cannot be used here."""
        layout = read_layout(folder)
        with self._only_one(), full_disk_told(self.folder):
            if (known := self.find(layout.manifest_digest)) is not None:
                return known
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".unpacking-") as scratch:
                work = Path(scratch) / "image"
                work.mkdir(mode=0o700)
                image = _unpack(layout, work)
                (work / _RECORD).write_text(json.dumps(image.plain(), indent=1))
                # Written to the disk before it gets its name: a crash of the machine leaves the whole image or none.
                subprocess.run(["sync", "-f", work], check=True)
                place = self._place(image.manifest)
                if place.exists():
                    place.rename(Path(scratch) / "changed")
                work.rename(place)
        mark_used(self._use(image.manifest))
        with self._lock:
            self._checked[image.manifest] = image, self._unpacked(image.manifest)
        return image

    def _place(self, digest: str) -> Path:
        return self.folder / digest.removeprefix("sha256:")

    def _read(self, digest: str) -> UnpackedImage | None:
        try:
            return UnpackedImage.model_validate_json((self._place(digest) / _RECORD).read_bytes())
        except (OSError, ValueError):
            return None

    def _use(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        if not _HEXADECIMAL.fullmatch(name):
            raise ImageUnavailable(f"{digest!r} is no digest of an image")
        return self.folder / f"{name}.use"

    def _used_at(self, digest: str) -> float:
        for path in (self._use(digest), self._place(digest)):
            with suppress(FileNotFoundError):
                return path.stat().st_mtime
        return 0.0

    def _unpacked(self, digest: str) -> tuple[int, int] | None:
        """What tells an unpacked image from one that was unpacked anew in its place."""
        try:
            record = os.stat(self._place(digest) / _RECORD)
        except OSError:
            return None
        return record.st_ino, record.st_ctime_ns

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """Of all processes of this machine, and what a killed one left half unpacked or half deleted is taken away."""
        with hold(self.folder / "lock", timeout_seconds=_LOADING_SECONDS):
            for left in (*self.folder.glob(".unpacking-*"), *self.folder.glob(".old-*")):
                delete(left)
            yield


def _unpack(layout: Layout, work: Path) -> UnpackedImage:
    config = _config(layout)
    architecture = ARCHITECTURES.get(layout.architecture, layout.architecture)
    if architecture != os.uname().machine:
        raise ImageUnavailable(f"{layout.name} is for {architecture}, and this machine is {os.uname().machine}")
    labels = config.get("config", {}).get("Labels") or {}
    root = work / "rootfs"
    root.mkdir(mode=0o755)
    unpacking = Unpacking(root)
    for number, layer in reversed(list(enumerate(layout.layers))):
        unpacking.layer(layout.blob(layer.digest), layer, lowest=number == 0)
    unpacking.finish(knows_localhost=labels.get(LOCALHOST_LABEL) == LOCALHOST_RESOLVED)
    seal = _seal(root)
    return UnpackedImage(
        name=layout.name,
        manifest=layout.manifest_digest,
        config=layout.config_digest,
        layers=tuple(layer.digest for layer in layout.layers),
        architecture=architecture,
        files=seal.files,
        seal=seal.hash,
        lacks=tuple(program for program in _NEEDED if not _has(root, program)),
        size_bytes=size_bytes(root),
    )


class _Seal(Record):
    hash: str
    files: int


def _seal(root: Path) -> _Seal:
    """Over all that the kernel says of every file below `root`, but for the time it was read."""
    digest = hashlib.sha256()
    files = 0
    folders = [os.fsencode(root)]
    try:
        while folders:
            folder = folders.pop()
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                files += 1
                seen = entry.stat(follow_symlinks=False)
                digest.update(b"%s\0%d %d" % (entry.path[len(os.fsencode(root)) :], seen.st_ino, seen.st_mode))
                digest.update(b" %d %d %d" % (seen.st_uid, seen.st_gid, seen.st_size))
                digest.update(b" %d %d\0" % (seen.st_mtime_ns, seen.st_ctime_ns))
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    except FileNotFoundError:
        return _Seal(hash="gone", files=0)
    return _Seal(hash=digest.hexdigest(), files=files)


def _config(layout: Layout) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(layout.blob(layout.config_digest).read_bytes())
    return content


def _has(root: Path, program: str) -> bool:
    """Whether a program is in the root, by its path or in one of the folders that a sandbox looks in."""
    folders = [""] if program.startswith("/") else wrapper.ENVIRONMENT["PATH"].split(":")
    return any(_is_executable(root, f"{folder}/{program}") for folder in folders)


def _is_executable(root: Path, path: str) -> bool:
    """Links are followed as they would be inside."""
    for _ in range(40):
        inside = root / path.lstrip("/")
        if not inside.is_symlink():
            return inside.is_file() and os.access(inside, os.X_OK)
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(inside)))
    return False
