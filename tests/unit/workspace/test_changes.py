"""From one tree's files to another's: what is there afterwards is as if it had been unpacked anew."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from hypothesis import example, given, settings

from runners.workspace.changes import changes_between
from runners.workspace.store import EXECUTABLE, FILE, SYMLINK, Change, Store
from runners.workspace.stream import tar_of_tree
from tests.unit.workspace.trees import Files, file_sets, write

ONE, TWO = Change(FILE, b"1"), Change(FILE, b"2")


def unpack(tar: bytes, folder: Path) -> None:
    subprocess.run(["tar", "-xf", "-", "-C", folder], input=tar, check=True, capture_output=True)


def take_away(folder: Path, path: bytes) -> None:
    """As a sandbox's first process does."""
    found = os.path.join(os.fsencode(folder), path)
    if os.path.isdir(found) and not os.path.islink(found):
        shutil.rmtree(found)
    elif os.path.lexists(found):
        os.unlink(found)


def seen(folder: Path) -> dict[bytes, tuple[int, int, bytes]]:
    """Kind and mode, time and content of all that is below a folder."""
    found = {}
    for root, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            told = os.lstat(path)
            content = os.readlink(path) if stat.S_ISLNK(told.st_mode) else b""
            if stat.S_ISREG(told.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(folder))] = (told.st_mode, int(told.st_mtime), content)
    return found


@settings(max_examples=60, deadline=None)
@given(before=file_sets(8), after=file_sets(8))
@example(before={"a": ONE}, after={"a": ONE})
@example(before={"a": Change(SYMLINK, b"b"), "b/x": ONE}, after={"a/x": TWO, "b/x": ONE})
@example(before={"a/x": ONE, "a/y/z": ONE}, after={"a": Change(SYMLINK, b"..")})
@example(before={"a/x": ONE, "a/y": ONE}, after={"a/x": Change(EXECUTABLE, b"1")})
@example(before={"a/b/c": ONE, "d": ONE}, after={"d": ONE})
@example(before={"a": ONE}, after={"a/b/c": ONE})
def test_changes_lead_to_what_the_second_tree_is(shared_store: Store, before: Files, after: Files) -> None:
    base, tree = write(shared_store, before), write(shared_store, after)
    with tempfile.TemporaryDirectory() as changed, tempfile.TemporaryDirectory() as anew:
        unpack(tar_of_tree(shared_store, base), Path(changed))
        gone, pieces = changes_between(shared_store, base, tree)
        for path in gone:
            take_away(Path(changed), path)
        if pieces:
            unpack(b"".join(pieces), Path(changed))
        unpack(tar_of_tree(shared_store, tree), Path(anew))
        assert seen(Path(changed)) == seen(Path(anew))


def test_only_what_differs_is_sent(store: Store) -> None:
    files = {f"folder-{number}/file": Change(FILE, b"x" * 10_000) for number in range(50)}
    base = write(store, files)
    tree = write(store, {**files, "folder-7/file": ONE})
    gone, pieces = changes_between(store, base, tree)
    assert gone == [b"folder-7/file"]
    assert len(b"".join(pieces)) < 12_000
    assert changes_between(store, base, base) == ([], [])
