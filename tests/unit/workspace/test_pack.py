from __future__ import annotations

import hashlib
import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.workspace.errors import ObjectUnreadable, PackRefused
from runners.workspace.pack import _delta, _patched, add_pack, pack_between, pack_of_commit
from runners.workspace.store import EMPTY_TREE, FILE, SUBMODULE, Change, Store
from tests.unit.workspace.trees import Files, file_sets, git, read, write

LINES = [b"line %d of a file\n" % n for n in range(2_000)]
random.Random(5).shuffle(LINES)  # noqa: S311 - a fixed shuffle
BIG = Change(FILE, b"".join(LINES))


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "other.git")


@settings(max_examples=50, deadline=None)
@given(before=file_sets(), after=file_sets())
def test_a_store_with_the_old_tree_gets_the_new_one(
    tmp_path_factory: pytest.TempPathFactory, shared_store: Store, before: Files, after: Files
) -> None:
    other = Store.create(tmp_path_factory.mktemp("other") / "s.git")
    old, new = write(shared_store, before), write(shared_store, after)
    add_pack(other, pack_between(shared_store, EMPTY_TREE, old), root=old)
    add_pack(other, pack_between(shared_store, old, new), root=new)
    assert read(other, new) == after


@settings(max_examples=200, deadline=None)
@given(base=st.binary(max_size=400), target=st.binary(max_size=400), common=st.binary(max_size=70_000))
def test_a_delta_restores_its_target(base: bytes, target: bytes, common: bytes) -> None:
    for old, new in ((base, target), (common + base, common + target), (base + common, target + common)):
        assert _patched(old, _delta(old, new)) == new


def test_a_small_edit_of_a_large_file_makes_a_small_pack(store: Store) -> None:
    old = write(store, {"big.txt": BIG, **{f"d/{n}": Change(FILE, b"%d" % n) for n in range(300)}})
    edited = Change(FILE, BIG.data.replace(b"line 1000 of", b"line one thousand of"))
    pack = pack_between(store, old, store.with_changes(old, {"big.txt": edited}))
    assert len(pack) < 300


def test_what_merely_moved_is_not_packed_again(store: Store) -> None:
    old = write(store, {"a/big.txt": BIG, "a/x": Change(FILE, b"x")})
    moved = write(store, {"b/big.txt": BIG, "b/x": Change(FILE, b"x"), "c": BIG})
    assert len(pack_between(store, old, moved)) < 200


def test_equal_trees_make_no_pack(store: Store, other: Store) -> None:
    tree = write(store, {"a": BIG})
    assert pack_between(store, tree, tree) == b""
    add_pack(other, b"", root=EMPTY_TREE)
    with pytest.raises(PackRefused):
        add_pack(other, b"", root=tree)


def test_the_same_trees_make_the_same_pack(store: Store, other: Store) -> None:
    files = {"a": BIG, "b/c": Change(FILE, b"x")}
    packs = []
    for each in (store, other):
        old = write(each, files)
        packs.append(pack_between(each, old, each.with_changes(old, {"b/d": BIG, "a": Change(FILE, BIG.data + b"z")})))
    assert packs[0] == packs[1]


def test_a_submodule_is_named_and_not_packed(store: Store, other: Store) -> None:
    tree = store.with_entries(write(store, {"a": BIG}), {"sub": (SUBMODULE, "1" * 40)})
    add_pack(other, pack_between(store, EMPTY_TREE, tree), root=tree)
    assert [e.path for e in other.walk(tree, submodules=True)] == ["a", "sub"]


def test_git_reads_the_packs(store: Store, other: Store) -> None:
    old = write(store, {"big": BIG, "x/y": Change(FILE, b"")})
    new = store.with_changes(old, {"big": Change(FILE, BIG.data + b"more"), "x/z": Change(FILE, b"z")})
    git(other.path, "unpack-objects", "-q", "--strict", data=pack_between(store, EMPTY_TREE, old))
    git(other.path, "unpack-objects", "-q", "--strict", data=pack_between(store, old, new))
    assert set(read(other, new)) == {"big", "x/y", "x/z"}


def test_a_commit_travels_with_its_tree(store: Store, other: Store) -> None:
    tree = write(store, {"a": BIG})
    commit = git(store.path, "commit-tree", "-m", "snapshot", tree).decode().strip()
    add_pack(other, pack_of_commit(store, commit), root=commit)
    assert other.tree_of_commit(commit) == tree
    assert read(other, tree) == {"a": BIG}


def test_a_thin_pack_needs_its_old_tree(store: Store, other: Store) -> None:
    old = write(store, {"a": BIG})
    new = store.with_changes(old, {"a": Change(FILE, BIG.data + b"more")})
    with pytest.raises((PackRefused, ObjectUnreadable)):
        add_pack(other, pack_between(store, old, new), root=new)
    assert not other.has(new)


def test_a_tree_whose_content_is_missing_is_not_written(store: Store, other: Store) -> None:
    tree = write(store, {"a": BIG})
    body = _pack((2, store.raw_object(tree)[1]))
    with pytest.raises(PackRefused, match="which is neither in it nor in the store"):
        add_pack(other, body, root=tree)
    assert not other.has(tree)


def test_a_pack_that_grows_too_large_is_refused(store: Store, other: Store) -> None:
    tree = write(store, {"a": BIG})
    with pytest.raises(PackRefused):
        pack_between(store, EMPTY_TREE, tree, max_bytes=100)
    with pytest.raises(PackRefused):
        add_pack(other, pack_between(store, EMPTY_TREE, tree), max_bytes=100)


def _pack(*objects: tuple[int, bytes], sizes: tuple[int, ...] = (), count: int | None = None) -> bytes:
    body = struct.pack(">4sII", b"PACK", 2, len(objects) if count is None else count)
    for number, (kind, data) in enumerate(objects):
        size = sizes[number] if sizes else len(data)
        head = bytearray([kind << 4 | size & 15 | (0x80 if size > 15 else 0)])
        size >>= 4
        while size:
            head.append(size & 127 | (0x80 if size > 127 else 0))
            size >>= 7
        body += bytes(head) + zlib.compress(data)
    return body + hashlib.sha1(body).digest()  # noqa: S324 - git's own digest


@pytest.mark.parametrize(
    "data",
    [
        b"PACK",
        b"x" * 64,
        _pack((3, b"abc"))[:-1] + b"x",
        _pack((3, b"abc"), count=2),
        _pack((3, b"abc"), count=0),
        _pack((3, b"abc"), sizes=(2,)),
        _pack((3, b"abc"), sizes=(4,)),
        _pack((3, bytes(5_000_000)), sizes=(10,)),
        _pack((3, b"abc"), sizes=(1 << 50,)),
        _pack((4, b"abc")),
        _pack((2, b"no tree")),
        _pack((1, b"no commit")),
        _pack((3, b"abc"), count=1 << 31),
    ],
)
def test_a_hostile_pack_is_refused(store: Store, data: bytes) -> None:
    with pytest.raises(PackRefused):
        add_pack(store, data)


@pytest.mark.parametrize(
    "delta",
    [
        b"\x03\x05\x05abc",
        b"\x03\x03\x91\x09\x03",
        b"\x04\x00",
        b"\x03\x03\x00",
        b"\x03",
        b"\x03\x02\x03abc",
        b"\x03\xff\xff\xff\xff\x7f\x01a",
    ],
)
def test_a_hostile_delta_is_refused(delta: bytes) -> None:
    with pytest.raises(PackRefused):
        _patched(b"abc", delta)
