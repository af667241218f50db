"""The tar format, written byte for byte the same everywhere and read as something an enemy wrote.

The writer makes GNU tar members (names of any bytes and length), owned by the sandbox's user, with one fixed time. The
reader takes v7, ustar, GNU and pax archives of files, folders, symbolic and hard links, and refuses everything else:
its work and memory are bounded by `TreeLimits` and its input, whatever the headers claim. Own code instead of
`tarfile`, since that one trusts sizes and sparse maps, and takes a millisecond for ten members.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from runners.workspace.errors import RefusedWorkspace
from runners.workspace.paths import decode_path

BLOCK_BYTES = 512
SANDBOX_UID = 65532
# 2000-01-01T00:00:00Z: a zip file, and so a wheel built inside, cannot hold a time before 1980.
FIXED_TIME_SECONDS = 946_684_800
END = bytes(2 * BLOCK_BYTES)
_OWNER = b"%07o\0" % SANDBOX_UID * 2
_TIME = b"%011o\0" % FIXED_TIME_SECONDS
_MAGIC = b"ustar  \0".ljust(BLOCK_BYTES - 257, b"\0")
# The magic, and the checksum's own field, which counts as eight spaces.
_FIXED_SUM = sum(_MAGIC) + 8 * 0x20
_MAX_META_BYTES = 64 * 1024
_PAX_RECORD = re.compile(rb"(\d{1,6}) ([^=\0]+)=")

MemberKind = Literal["file", "folder", "symlink", "hard_link"]
_KINDS: dict[bytes, MemberKind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard_link",
    b"2": "symlink",
    b"5": "folder",
}


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """How much may become one tree."""

    max_files: int = 50_000
    max_bytes: int = 512 * 1024 * 1024
    max_file_bytes: int = 128 * 1024 * 1024
    max_links: int = 10_000


DEFAULT_LIMITS = TreeLimits()


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive: `path` has no leading `./` and no trailing `/`, and nobody has checked it yet."""

    path: str
    kind: MemberKind
    executable: bool = False
    data: bytes = b""
    target: str = ""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


# -- writing ---------------------------------------------------------------------------------------------------------


def file_member(path: bytes, data: bytes, *, executable: bool) -> tuple[bytes, bytes, bytes]:
    """Header, content and padding of a regular file."""
    return _header(path, b"0", 0o755 if executable else 0o644, len(data)), data, bytes(-len(data) % BLOCK_BYTES)


def folder_member(path: bytes) -> bytes:
    return _header(path + b"/", b"5", 0o755)


def symlink_member(path: bytes, target: bytes) -> bytes:
    return _header(path, b"2", 0o777, link=target)


def _header(name: bytes, kind: bytes, mode: int, size: int = 0, link: bytes = b"") -> bytes:
    lead = b""
    if len(link) > 100:
        lead += _long(b"K", link)
    if len(name) > 100:
        lead += _long(b"L", name)
    return lead + _block(name, kind, mode, size, link)


def _long(kind: bytes, value: bytes) -> bytes:
    data = value + b"\0"
    return _block(b"././@LongLink", kind, 0o644, len(data), b"") + data + bytes(-len(data) % BLOCK_BYTES)


def _block(name: bytes, kind: bytes, mode: int, size: int, link: bytes) -> bytes:
    fields = b"%07o\0%b%011o\0%b" % (mode, _OWNER, size, _TIME)
    checksum = sum(name[:100]) + sum(fields) + sum(link[:100]) + kind[0] + _FIXED_SUM
    return b"%b%b%06o\0 %b%b%b" % (
        name[:100].ljust(100, b"\0"), fields, checksum, kind, link[:100].ljust(100, b"\0"), _MAGIC,
    )  # fmt: skip


# -- reading ---------------------------------------------------------------------------------------------------------


def read_members(source: Readable, limits: TreeLimits) -> Iterator[Member]:
    """The members of the tar in `source`, in its order, the root folder itself left out.

    Raises `RefusedWorkspace`: `truncated` without an end mark (what is missing must not pass for deleted),
    `malformed`, `too_many_files`, `too_many_bytes`, or the kind of a member that cannot become a tree entry.
    """
    return _Reader(source, limits).members()


class _Reader:
    def __init__(self, source: Readable, limits: TreeLimits) -> None:
        self._source, self._limits = source, limits
        self._bytes_left = limits.max_bytes
        self._headers_left = 3 * limits.max_files + 16
        self._files_left = limits.max_files
        self._name: bytes | None = None
        self._link: bytes | None = None
        self._size: int | None = None

    def members(self) -> Iterator[Member]:
        while (block := self._exactly(BLOCK_BYTES)) != bytes(BLOCK_BYTES):
            self._headers_left -= 1
            if self._headers_left < 0:
                raise RefusedWorkspace("too_many_files")
            _check_sum(block)
            kind = block[156:157]
            if kind in b"LKxg":
                self._take_meta(kind, _number(block[124:136]))
                continue
            member = self._member(block, kind)
            self._name = self._link = self._size = None
            if member is not None:
                yield member

    def _take_meta(self, kind: bytes, size: int) -> None:
        """A header about the next member: GNU long name or link, or pax records."""
        if size > _MAX_META_BYTES:
            raise RefusedWorkspace("malformed")
        data = self._data(size)
        if kind == b"L":
            self._name = data.split(b"\0", 1)[0]
        elif kind == b"K":
            self._link = data.split(b"\0", 1)[0]
        else:
            self._take_pax(_pax_records(data), for_all=kind == b"g")

    def _take_pax(self, records: dict[bytes, bytes], *, for_all: bool) -> None:
        ours = {b"path", b"linkpath", b"size"} & records.keys()
        if (for_all and ours) or any(key.startswith(b"GNU.sparse") for key in records):
            raise RefusedWorkspace("unknown_type", decode_path(records.get(b"path", b"")))
        self._name = records.get(b"path", self._name)
        self._link = records.get(b"linkpath", self._link)
        if b"size" in records:
            if not re.fullmatch(rb"\d{1,15}", records[b"size"]):
                raise RefusedWorkspace("malformed")
            self._size = int(records[b"size"])

    def _member(self, block: bytes, kind: bytes) -> Member | None:
        name = self._name if self._name is not None else _name(block)
        path = clean_path(decode_path(name))
        size = self._size if self._size is not None else _number(block[124:136])
        if kind in (b"0", b"\0") and name.endswith(b"/"):
            kind = b"5"  # as old tars write a folder
        member_kind = _kind(kind, path)
        if member_kind != "file" and size:
            raise RefusedWorkspace("malformed", path)
        if not path and member_kind == "folder":
            return None
        self._files_left -= 1
        if self._files_left < 0:
            raise RefusedWorkspace("too_many_files", path)
        if size > self._limits.max_file_bytes or size > self._bytes_left:
            raise RefusedWorkspace("too_many_bytes", path)
        self._bytes_left -= size
        target = decode_path(self._link if self._link is not None else block[157:257].split(b"\0", 1)[0])
        executable = bool(_number(block[100:108]) & 0o100)
        return Member(path, member_kind, executable, self._data(size), target)

    def _data(self, size: int) -> bytes:
        data = self._exactly(size)
        self._exactly(-size % BLOCK_BYTES)
        return data

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size) if size else b""
        if len(data) == size:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and (part := self._source.read(missing)):
            parts.append(part)
            missing -= len(part)
        if missing:
            raise RefusedWorkspace("truncated")
        return b"".join(parts)


def clean_path(path: str) -> str:
    """`path` without what tar adds to it: leading `./`, trailing `/`; "" is the root folder."""
    path = path.rstrip("/") if path.strip("/") else path
    while path.startswith("./"):
        path = path[2:].lstrip("/") if path[2:].strip("/") else ""
    return "" if path == "." else path


def _kind(kind: bytes, path: str) -> MemberKind:
    if kind in _KINDS:
        return _KINDS[kind]
    raise RefusedWorkspace({b"3": "device", b"4": "device", b"6": "fifo"}.get(kind, "unknown_type"), path)


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].split(b"\0", 1)[0]
        return prefix + b"/" + name if prefix else name
    return name


def _number(field: bytes) -> int:
    """An octal number, or GNU's base 256 for what is too large for octal."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", text):
        raise RefusedWorkspace("malformed")
    return int(text or b"0", 8)


def _check_sum(block: bytes) -> None:
    said = _number(block[148:156])
    unsigned = sum(block) - sum(block[148:156]) + 8 * 0x20
    if said == unsigned:
        return
    # Some old writers summed signed bytes.
    if said != unsigned - 256 * sum(byte >= 0x80 for byte in block[:148] + block[156:]):
        raise RefusedWorkspace("malformed")


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """The `LENGTH KEY=VALUE newline` records of a pax header (POSIX.1-2001)."""
    records, at = {}, 0
    while at < len(data):
        head = _PAX_RECORD.match(data, at)
        end = at + int(head[1]) if head else 0
        if head is None or end > len(data) or end <= head.end() or data[end - 1 : end] != b"\n":
            raise RefusedWorkspace("malformed")
        records[head[2]] = data[head.end() : end - 1]
        at = end
    return records
