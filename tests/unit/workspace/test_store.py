from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pygit2
import pytest
from hypothesis import given, settings

from runners.workspace.errors import InvalidPath, ObjectUnreadable, PathConflict, StoreUnusable
from runners.workspace.store import EMPTY_TREE, EXECUTABLE, FILE, SUBMODULE, SYMLINK, Change, Store
from tests.unit.workspace.trees import Files, file_sets, git, read, write

TEXT = Change(FILE, b"text\n")


def test_what_was_written_is_read_back(store: Store) -> None:
    tree = write(store, {"src/a.py": TEXT, "run": Change(EXECUTABLE, b""), "src/link": Change(SYMLINK, b"a.py")})
    entry = store.entry(tree, "src/a.py")
    assert entry is not None
    assert (entry.path, entry.mode, entry.kind) == ("src/a.py", FILE, "file")
    assert store.blob(entry.id) == b"text\n"
    assert store.blob_size(entry.id) == 5
    assert [e.path for e in store.walk(tree)] == ["run", "src/a.py", "src/link"]
    assert [(e.path, e.kind) for e in store.list_folder(tree)] == [("run", "file"), ("src", "folder")]
    assert [(e.path, e.kind) for e in store.list_folder(tree, "src")] == [("src/a.py", "file"), ("src/link", "symlink")]


def test_what_is_not_there_is_none_or_empty(store: Store) -> None:
    tree = write(store, {"src/a.py": TEXT})
    assert store.entry(tree, "src/b.py") is None
    assert store.entry(tree, "src/a.py/b") is None
    assert store.list_folder(tree, "src/a.py") == []
    assert list(store.walk(tree, "nowhere")) == []
    assert not store.has("1" * 40)
    with pytest.raises(ObjectUnreadable):
        store.blob("1" * 40)
    with pytest.raises(ObjectUnreadable):
        store.blob(tree)


def test_no_path_leads_out(store: Store) -> None:
    tree = write(store, {"a": TEXT})
    for path in ("../a", "/a", "a/../../etc", ".git/config"):
        with pytest.raises(InvalidPath):
            store.entry(tree, path)
        with pytest.raises(InvalidPath):
            store.list_folder(tree, path)
        with pytest.raises(InvalidPath):
            list(store.walk(tree, path))
        with pytest.raises(InvalidPath):
            store.with_changes(tree, {path: TEXT})


def test_walk_is_sorted_by_bytes_and_takes_a_prefix(store: Store) -> None:
    tree = write(store, dict.fromkeys(("a.b", "a/b", "a0", "a/c/d", "\udcff", "z"), TEXT))
    assert [e.path for e in store.walk(tree)] == ["a.b", "a/b", "a/c/d", "a0", "z", "\udcff"]
    assert [e.path for e in store.walk(tree, "a")] == ["a/b", "a/c/d"]
    assert [e.path for e in store.walk(tree, "a/b")] == ["a/b"]


def test_a_submodule_comes_only_when_asked_for(store: Store) -> None:
    tree = store.write_tree({"sub": (SUBMODULE, "1" * 40), "a": (FILE, store.add_blob(b"x"))})
    assert [e.path for e in store.walk(tree)] == ["a"]
    assert [(e.path, e.kind) for e in store.walk(tree, submodules=True)] == [("a", "file"), ("sub", "submodule")]
    assert [e.kind for e in store.list_folder(tree)] == ["file", "submodule"]


def test_an_edit_and_its_reverse_give_the_same_id(store: Store) -> None:
    tree = write(store, {"src/deep/a.py": TEXT, "b": TEXT})
    edited = store.with_changes(tree, {"src/deep/a.py": Change(FILE, b"other"), "src/new/c": TEXT})
    assert edited != tree
    assert store.with_changes(edited, {"src/deep/a.py": TEXT, "src/new/c": None}) == tree


def test_folders_without_files_vanish(store: Store) -> None:
    tree = write(store, {"src/deep/er/a.py": TEXT, "b": TEXT})
    assert [e.path for e in store.list_folder(store.with_changes(tree, {"src/deep/er/a.py": None}))] == ["b"]
    assert store.with_changes(tree, {"src": None, "b": None}) == EMPTY_TREE


def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    tree = write(store, {"a": TEXT})
    assert store.with_changes(tree, {"b": None, "c/d": None, "a/x": None}) == tree


def test_a_file_and_a_folder_do_not_replace_each_other_by_accident(store: Store) -> None:
    tree = store.with_entries(write(store, {"a": TEXT, "d/x": TEXT}), {"sub": (SUBMODULE, "2" * 40)})
    for path in ("a/b", "d", "sub/x", "sub"):
        with pytest.raises(PathConflict):
            store.with_changes(tree, {path: TEXT})
    assert set(read(store, store.with_changes(tree, {"a": None, "a/b": TEXT}))) == {"a/b", "d/x"}
    assert set(read(store, store.with_changes(tree, {"d/x": None, "d": TEXT}))) == {"a", "d"}
    with pytest.raises(PathConflict):
        store.with_changes(tree, {"n": TEXT, "n/m": TEXT})


def test_nothing_is_changed_when_one_change_is_refused(store: Store) -> None:
    tree = write(store, {"a": TEXT})
    with pytest.raises(PathConflict):
        store.with_changes(tree, {"b": TEXT, "a/c": TEXT})
    assert read(store, tree) == {"a": TEXT}


@pytest.mark.parametrize(
    "change", [Change(0o100600, b""), Change(SYMLINK, b""), Change(SYMLINK, b"a\0b"), Change(SUBMODULE, b"")]
)
def test_a_change_must_be_a_file_or_a_usable_link(store: Store, change: Change) -> None:
    with pytest.raises(InvalidPath):
        store.with_changes(EMPTY_TREE, {"a": change})


@settings(max_examples=60, deadline=None)
@given(before=file_sets(), after=file_sets())
def test_changes_give_exactly_the_wanted_files(shared_store: Store, before: Files, after: Files) -> None:
    tree = write(shared_store, before)
    assert read(shared_store, tree) == before
    wanted: dict[str, Change | None] = {**dict.fromkeys(before), **after}
    changed = shared_store.with_changes(tree, wanted)
    assert read(shared_store, changed) == after
    assert changed == write(shared_store, after)


def test_git_finds_the_trees_sound(store: Store) -> None:
    tree = write(store, {"a/b": TEXT, "a.c": TEXT, "a0": Change(EXECUTABLE, b"x"), "l\udcff": Change(SYMLINK, b"a/b")})
    git(store.path, "fsck", "--strict", "--no-dangling", tree)
    listed = git(store.path, "ls-tree", "-r", "-z", "--name-only", tree)
    assert listed.split(b"\0")[:-1] == [e.path.encode("utf-8", "surrogateescape") for e in store.walk(tree)]


def test_old_modes_and_padded_modes_are_read_as_git_means_them(store: Store) -> None:
    blob = bytes.fromhex(store.add_blob(b"x"))
    folder = bytes.fromhex(store.add_object(2, b"100664 f\0" + blob))
    tree = store.add_object(2, b"040000 d\0" + folder + b"100775 e\0" + blob)
    assert [(e.path, e.mode) for e in store.walk(tree)] == [("d/f", FILE), ("e", EXECUTABLE)]


def test_damaged_objects_are_told(store: Store) -> None:
    tree = write(store, {"a": TEXT})
    loose = store.path / "objects" / tree[:2] / tree[2:]
    loose.chmod(0o644)
    loose.write_bytes(b"garbage")
    with pytest.raises(ObjectUnreadable):
        list(Store(store.path).walk(tree))


def test_a_folder_that_is_no_repository_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable):
        Store(tmp_path)


def test_threads_share_a_store(store: Store) -> None:
    found: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            tree = store.with_changes(EMPTY_TREE, {f"{number}/{turn}": Change(FILE, b"%d %d" % (number, turn))})
            found.append(tree)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(len(list(store.walk(tree))) == 1 for tree in found)


def test_objects_of_another_process_are_seen(store: Store) -> None:
    assert not store.has("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0")
    subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=store.path, input=b"hello", check=True, capture_output=True
    )
    assert store.blob("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0") == b"hello"


def test_nobodys_git_configuration_is_read(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tbare = not a boolean\n[include\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert write(Store(store.path), {"a": TEXT})
    assert pygit2.settings.search_path[pygit2.enums.ConfigLevel.GLOBAL] == ""
