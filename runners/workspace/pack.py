"""Git packs that carry what is new in a tree from one host to another, by way of the ledger's objects.

Written by us and read by us, as standard version 2 packs that git reads too. A pack lists blobs first, folders before
the folder that holds them and the root (or the commit) last, so that a reader who dies half-way never leaves a tree
behind that is not complete. An object that replaces another at the same path is a delta against it when that is
smaller: a pack between two trees may be thin, and then needs the old tree in the reader's store.

Own code instead of pygit2's `PackBuilder`, which writes to a folder, cannot make thin packs, and leaves one more pack
file to search for every step of every job.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from runners.workspace.errors import PackRefused
from runners.workspace.store import SUBMODULE, Store
from runners.workspace.trees import EMPTY_TREE, RawEntry, parse_tree

MAX_PACK_BYTES = 64 * 1024 * 1024
MAX_UNPACKED_BYTES = 1024 * 1024 * 1024
MAX_OBJECTS = 200_000

_COMMIT, _TREE, _BLOB, _DELTA = 1, 2, 3, 7
_TYPES = (_COMMIT, _TREE, _BLOB)
_COPY_BYTES = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class _New:
    """An object that a pack shall hold, and the one it replaced, if any."""

    kind: int
    id: str
    replaced: str | None = None


def pack_between(store: Store, old: str, new: str, *, max_bytes: int = MAX_PACK_BYTES) -> bytes:
    """A pack of the objects of the tree `new` that are not in the tree `old`; b"" when there are none.

    Raises `PackRefused` when it grows over `max_bytes`, `ObjectUnreadable`.
    """
    found = list(_Difference(store, old).between(old, new))
    return _write_pack(store, found, max_bytes) if found else b""


def pack_of_commit(store: Store, commit: str, *, max_bytes: int = MAX_PACK_BYTES) -> bytes:
    """A pack of one commit without its history: itself, its tree and all that is in it.

    Raises `PackRefused` when it grows over `max_bytes`, `ObjectUnreadable`.
    """
    tree = store.tree_of_commit(commit)
    found = list(_Difference(store, EMPTY_TREE).between(EMPTY_TREE, tree))
    return _write_pack(store, [*found, _New(_COMMIT, commit)], max_bytes)


class _Difference:
    """The new objects between two trees, children first. What merely moved is not new."""

    def __init__(self, store: Store, old: str) -> None:
        self._store, self._old = store, old
        self._seen: set[str] = {EMPTY_TREE}
        self._held: set[str] | None = None

    def between(self, old: str, new: str) -> Iterator[_New]:
        if new == old or new in self._seen:
            return
        self._seen.add(new)
        before = {e.name: e for e in self._store.raw_tree(old)}
        for entry in self._store.raw_tree(new):
            was = before.get(entry.name)
            object_id = entry.id.hex()
            if entry.mode == SUBMODULE or (was is not None and was.id == entry.id) or object_id in self._seen:
                continue
            twin = was.id.hex() if was is not None and _kind(was) == _kind(entry) else None
            if twin is None and object_id in self._held_by_old():
                continue
            if entry.is_folder:
                yield from self.between(twin or EMPTY_TREE, object_id)
            else:
                self._seen.add(object_id)
                yield _New(_BLOB, object_id, twin)
        yield _New(_TREE, new, old if old != EMPTY_TREE else None)

    def _held_by_old(self) -> set[str]:
        if self._held is None:
            self._held = set(_reachable(self._store, self._old))
        return self._held


def _kind(entry: RawEntry) -> int:
    return _TREE if entry.is_folder else 0 if entry.mode == SUBMODULE else _BLOB


def _reachable(store: Store, tree: str) -> Iterator[str]:
    ahead, seen = [tree], {tree}
    while ahead:
        folder = ahead.pop()
        yield folder
        for entry in store.raw_tree(folder):
            object_id = entry.id.hex()
            if entry.mode != SUBMODULE and object_id not in seen:
                seen.add(object_id)
                if entry.is_folder:
                    ahead.append(object_id)
                else:
                    yield object_id


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_pack(store: Store, objects: list[_New], max_bytes: int) -> bytes:
    parts = [struct.pack(">4sII", b"PACK", 2, len(objects))]
    size = len(parts[0]) + 20
    for wanted in objects:
        packed = _packed(store, wanted)
        size += len(packed)
        if size > max_bytes:
            raise PackRefused(f"the new objects take more than {max_bytes} bytes")
        parts.append(packed)
    body = b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _packed(store: Store, wanted: _New) -> bytes:
    _, data = store.raw_object(wanted.id)
    if wanted.replaced is None:
        return _object_header(wanted.kind, len(data)) + zlib.compress(data)
    _, base = store.raw_object(wanted.replaced)
    delta = _delta(base, data)
    thin = _object_header(_DELTA, len(delta)) + bytes.fromhex(wanted.replaced) + zlib.compress(delta)
    if len(thin) * 8 < len(data):
        return thin
    return min(thin, _object_header(wanted.kind, len(data)) + zlib.compress(data), key=len)


def _object_header(kind: int, size: int) -> bytes:
    """Type in bits 4-6 of the first byte, size in its low four bits and then seven bits a byte."""
    out = bytearray()
    byte, size = kind << 4 | size & 0x0F, size >> 4
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    out.append(byte)
    return bytes(out)


def _delta(base: bytes, target: bytes) -> bytes:
    """A git delta: the common beginning and end are copied, what lies between is inserted."""
    head = _common(base, target)
    tail = _common(base[head:][::-1], target[head:][::-1])
    middle = target[head : len(target) - tail]
    out = bytearray(_varint(len(base)) + _varint(len(target)))
    out += _copies(0, head)
    for at in range(0, len(middle), 127):
        part = middle[at : at + 127]
        out.append(len(part))
        out += part
    out += _copies(len(base) - tail, tail)
    return bytes(out)


def _common(left: bytes, right: bytes) -> int:
    """The length of the common beginning, found by halving: slices compare at the speed of memory."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _copies(offset: int, size: int) -> bytes:
    out = bytearray()
    while size:
        part = min(size, _COPY_BYTES)
        out.append(0xFF)
        out += struct.pack("<I", offset) + struct.pack("<I", part)[:3]
        offset, size = offset + part, size - part
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- reading -----------------------------------------------------------------------------------------------------------


def add_pack(store: Store, data: bytes, *, root: str | None = None, max_bytes: int = MAX_PACK_BYTES) -> None:
    """Write the objects of a pack to the store; then `root`, a tree or commit, must be there in full.

    Every tree and commit is checked to be complete before it is written. Raises `PackRefused`, `ObjectUnreadable`.
    """
    if data:
        reader = _PackReader(data, max_bytes)
        for kind, base, content in reader.objects():
            if base is not None:
                kind, old = store.raw_object(base)
                content = _patched(old, content)
            _check_complete(store, kind, content)
            store.add_object(kind, content)
    if root is not None and not store.has(root):
        raise PackRefused(f"the pack does not hold {root}")


def _check_complete(store: Store, kind: int, data: bytes) -> None:
    if kind == _TREE:
        try:
            needed = [e.id.hex() for e in parse_tree(data) if e.mode != SUBMODULE]
        except ValueError:
            raise PackRefused("the pack holds a damaged tree") from None
    elif kind == _COMMIT:
        needed = [data[5:45].decode("ascii", "replace")]
    else:
        return
    missing = next((object_id for object_id in needed if not store.has(object_id)), None)
    if missing is not None:
        raise PackRefused(f"the pack needs {missing}, which is neither in it nor in the store")


class _PackReader:
    """The objects of a pack in their order, bounded whatever the headers claim."""

    def __init__(self, data: bytes, max_bytes: int) -> None:
        self._data, self._at = memoryview(data)[:-20], 12
        self._left_bytes = MAX_UNPACKED_BYTES
        if len(data) > max_bytes or len(data) < 32:
            raise PackRefused("the pack is too large, or no pack")
        magic, version, self._count = struct.unpack(">4sII", data[:12])
        if magic != b"PACK" or version != 2 or self._count > MAX_OBJECTS:
            raise PackRefused
        if hashlib.sha1(self._data, usedforsecurity=False).digest() != data[-20:]:
            raise PackRefused("the pack is damaged")

    def objects(self) -> Iterator[tuple[int, str | None, bytes]]:
        """Type, delta base and content (or delta) of each object."""
        for _ in range(self._count):
            kind, size = self._header()
            base = None
            if kind == _DELTA:
                base = self._take(20).hex()
            elif kind not in _TYPES:
                raise PackRefused
            yield kind, base, self._inflate(size)
        if self._at != len(self._data):
            raise PackRefused

    def _header(self) -> tuple[int, int]:
        byte = self._take(1)[0]
        kind, size, shift = byte >> 4 & 7, byte & 0x0F, 4
        while byte & 0x80 and shift < 60:
            byte = self._take(1)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
        return kind, size

    def _take(self, count: int) -> bytes:
        part = bytes(self._data[self._at : self._at + count])
        if len(part) != count:
            raise PackRefused("the pack ends too early")
        self._at += count
        return part

    def _inflate(self, size: int) -> bytes:
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise PackRefused("the pack holds too many bytes")
        inflater = zlib.decompressobj()
        out = bytearray()
        try:
            while not inflater.eof:
                chunk = self._data[self._at : self._at + 16_384]
                if not chunk:
                    raise PackRefused("the pack ends too early")
                out += inflater.decompress(chunk, size + 1 - len(out))
                self._at += len(chunk) - len(inflater.unused_data) - len(inflater.unconsumed_tail)
                if len(out) > size:
                    raise PackRefused("an object of the pack is larger than it says")
        except zlib.error:
            raise PackRefused("the pack is damaged") from None
        if len(out) != size:
            raise PackRefused("an object of the pack is smaller than it says")
        return bytes(out)


def _patched(base: bytes, delta: bytes) -> bytes:
    """`base` after a git delta. Raises `PackRefused` when the two do not belong together."""
    try:
        base_size, at = _read_varint(delta, 0)
        size, at = _read_varint(delta, at)
        if base_size != len(base) or size > MAX_UNPACKED_BYTES:
            raise PackRefused
        out = bytearray()
        while at < len(delta):
            op, at = delta[at], at + 1
            if op & 0x80:
                offset, at = _read_bytes(delta, at, op & 0x0F)
                length, at = _read_bytes(delta, at, op >> 4 & 0x07)
                part = base[offset : offset + (length or 0x10000)]
            else:
                part, at = delta[at : at + op], at + op
            if not part or len(out) + len(part) > size:
                raise PackRefused
            out += part
    except IndexError:
        raise PackRefused("a delta of the pack ends too early") from None
    if len(out) != size:
        raise PackRefused
    return bytes(out)


def _read_bytes(delta: bytes, at: int, present: int) -> tuple[int, int]:
    """A little-endian number of which only the bytes are stored whose bit is set in `present`."""
    value = 0
    for place in range(present.bit_length()):
        if present >> place & 1:
            value |= delta[at] << 8 * place
            at += 1
    return value, at


def _read_varint(delta: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 63:
        byte, at = delta[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return value, at
