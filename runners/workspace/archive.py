"""An archive becomes a tree without being unpacked: its members go straight to git objects.

tar (plain, gzip, bzip2, xz) and zip, told by their first bytes. A single folder at the top is taken off, `.git` is
dropped, links that lead out and devices are refused, and decompression stops at the limits, whatever the archive says
of itself.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from runners.workspace.collect import Collector, check_links
from runners.workspace.errors import RefusedWorkspace
from runners.workspace.paths import is_dotgit
from runners.workspace.store import Store
from runners.workspace.tarball import Member, Readable, TreeLimits, clean_path, read_members

ARCHIVE_LIMITS = TreeLimits(max_files=100_000, max_bytes=1024 * 1024 * 1024)
_XZ_MEMORY_BYTES = 128 * 1024 * 1024
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)


def tree_of_archive(store: Store, file: Path, limits: TreeLimits = ARCHIVE_LIMITS) -> str:
    """The id of the tree of the archive `file`. Raises `RefusedWorkspace`.

    Where an archive holds a path twice, the later one counts, as when it is unpacked.
    """
    collector = Collector(store, limits, duplicates="last")
    try:
        with file.open("rb") as raw:
            collector.take(m for m in _members(raw, limits) if not any(map(is_dotgit, m.path.split("/"))))
    except _DAMAGED as error:
        raise RefusedWorkspace("malformed") from error
    top = _single_top(collector.entries)
    entries = {path.removeprefix(top): entry for path, entry in collector.entries.items()}
    check_links({path.removeprefix(top): target for path, target in collector.links.items()})
    if not entries:
        raise RefusedWorkspace("empty")
    return store.write_tree(entries)


def _single_top(paths: dict[str, tuple[int, str]]) -> str:
    """`NAME/` when everything lies in one folder, else ""."""
    tops = {path.split("/", 1)[0] if "/" in path else "" for path in paths}
    return f"{tops.pop()}/" if len(tops) == 1 and "" not in tops else ""


def _members(raw: BinaryIO, limits: TreeLimits) -> Iterator[Member]:
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"PK"):
        return _zip_members(raw, limits)
    if magic.startswith(b"\x1f\x8b"):
        return read_members(cast(Readable, gzip.GzipFile(fileobj=raw)), limits)
    if magic.startswith(b"BZh"):
        return read_members(bz2.BZ2File(raw), limits)
    if magic == b"\xfd7zXZ\0":
        # Raises when the dictionary that the archive asks for is too large; LZMAFile cannot be told a limit.
        lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES).decompress(raw.read(65_536), max_length=1)
        raw.seek(0)
        return read_members(lzma.LZMAFile(raw), limits)
    return read_members(raw, limits)


def _zip_members(raw: BinaryIO, limits: TreeLimits) -> Iterator[Member]:
    bytes_left = limits.max_bytes
    with zipfile.ZipFile(raw) as archive:
        infos = archive.infolist()
        if len(infos) > limits.max_files:
            raise RefusedWorkspace("too_many_files")
        for info in infos:
            path = clean_path(info.filename)
            mode = info.external_attr >> 16 if info.create_system == 3 else 0
            if info.is_dir():
                if path:
                    yield Member(path, "folder")
                continue
            _check_zip(info, path, mode)
            bytes_left -= info.file_size
            if info.file_size > limits.max_file_bytes or bytes_left < 0:
                raise RefusedWorkspace("too_many_bytes", path)
            data = archive.read(info)
            if stat.S_ISLNK(mode):
                yield Member(path, "symlink", target=data.decode("utf-8", "surrogateescape"))
            else:
                yield Member(path, "file", executable=bool(mode & 0o100), data=data)


def _check_zip(info: zipfile.ZipInfo, path: str, mode: int) -> None:
    if info.flag_bits & 1:
        raise RefusedWorkspace("encrypted", path)
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
        raise RefusedWorkspace({stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}.get(kind, "device"), path)
