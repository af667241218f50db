from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from ledger.errors import BadInput
from runners.workspace.diff import ChangedPath, changed_paths, matches, patch_bytes, protected_changes
from runners.workspace.store import EMPTY_TREE, EXECUTABLE, FILE, SUBMODULE, SYMLINK, Change, Store
from tests.unit.workspace.trees import Files, file_sets, git, write

TEXT = Change(FILE, b"one\ntwo\nthree\n")


def apply_with_git(store: Store, old: str, patch: bytes) -> str:
    """The tree id that `git apply` makes of a real checkout of `old`."""
    folder = Path(tempfile.mkdtemp())
    try:
        git(folder, "init", "-q")
        (folder / ".git/objects/info/alternates").write_text(f"{store.path}/objects\n")
        git(folder, "read-tree", old)
        git(folder, "checkout-index", "-a", "-f", "-u")
        if patch:
            git(folder, "apply", "--index", "--whitespace=nowarn", "-", data=patch)
        return git(folder, "write-tree").decode().strip()
    finally:
        shutil.rmtree(folder)


@settings(max_examples=60, deadline=None)
@given(before=file_sets(), after=file_sets())
def test_git_apply_makes_the_same_tree_of_the_patch(shared_store: Store, before: Files, after: Files) -> None:
    old, new = write(shared_store, before), write(shared_store, after)
    patch = patch_bytes(shared_store, old, new)
    assert (patch == b"") == (old == new)
    assert apply_with_git(shared_store, old, patch) == new


def test_the_patch_is_what_git_itself_writes(store: Store) -> None:
    old = write(store, {"a.py": TEXT, "gone": TEXT, "mode": TEXT, "sp ace": TEXT, "kind": TEXT, '\u00e4\n"': TEXT})
    new = store.with_changes(
        old,
        {
            "a.py": Change(FILE, b"one\n2\nthree"),
            "gone": None,
            "mode": Change(EXECUTABLE, TEXT.data),
            "sp ace": Change(EXECUTABLE, b"other\n"),
            "kind": Change(SYMLINK, b"a.py"),
            '\u00e4\n"': Change(FILE, b""),
            "new/empty": Change(FILE, b""),
        },
    )
    options = ("--full-index", "--binary", "--no-renames", "--no-color", "-r", "-p")
    assert patch_bytes(store, old, new) == git(store.path, "diff-tree", *options, old, new)


def test_a_binary_file_survives(store: Store) -> None:
    old = write(store, {"b": Change(FILE, bytes(range(256)) * 20)})
    new = write(store, {"b": Change(FILE, bytes(range(255, -1, -1)) * 33)})
    patch = patch_bytes(store, old, new)
    assert b"GIT binary patch\nliteral 8448\n" in patch
    assert apply_with_git(store, old, patch) == new


def test_a_removed_submodule_is_in_the_patch(store: Store) -> None:
    old = store.with_entries(write(store, {"a": TEXT}), {"sub": (SUBMODULE, "1" * 40)})
    new = write(store, {"a": TEXT})
    assert patch_bytes(store, old, new) == git(store.path, "diff-tree", "--full-index", "-r", "-p", old, new)


def test_changed_paths_say_kind_modes_and_ids(store: Store) -> None:
    old = write(store, {"a": TEXT, "b/c": TEXT, "same/x": TEXT})
    new = store.with_changes(old, {"a": Change(EXECUTABLE, TEXT.data), "b/c": None, "d": Change(FILE, b"")})
    text = store.entry(old, "a")
    assert text is not None
    none, empty = "0" * 40, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert changed_paths(store, old, new) == [
        ChangedPath("a", "modified", FILE, text.id, EXECUTABLE, text.id),
        ChangedPath("b/c", "deleted", FILE, text.id, 0, none),
        ChangedPath("d", "added", 0, none, FILE, empty),
    ]
    assert changed_paths(store, old, old) == []
    assert {c.kind for c in changed_paths(store, EMPTY_TREE, old)} == {"added"}


@pytest.mark.parametrize(
    ("globs", "path", "expected"),
    [
        (["**"], "any/thing", True),
        (["tests/**"], "tests/deep/test_a.py", True),
        (["tests/**"], "src/tests/test_a.py", False),
        (["tests"], "src/tests/test_a.py", True),
        (["*.lock"], "a\nb/x.lock", True),
        (["/conftest.py"], "conftest.py", True),
        (["/conftest.py"], "conftest.py\n", False),
        (["src/**", "!src/generated/**"], "src/generated/a.py", False),
        (["**/*.py"], "a.py", True),
        ([], "a", False),
    ],
)
def test_globs_are_read_as_a_gitignore_reads_them(globs: list[str], path: str, expected: bool) -> None:
    assert matches(globs, path) is expected


def test_a_glob_that_is_none_is_bad_input() -> None:
    with pytest.raises(BadInput):
        matches(["!"], "a")


def test_a_change_of_any_kind_to_a_protected_path_is_found(store: Store) -> None:
    base = write(store, {"tests/test_a.py": TEXT, "tests/b": TEXT, "src/a.py": TEXT})
    tree = store.with_changes(
        base,
        {"tests/test_a.py": Change(EXECUTABLE, TEXT.data), "tests/b": None, "tests/new": TEXT, "src/a.py": None},
    )
    assert protected_changes(store, base, tree, ["tests/**"]) == ["tests/b", "tests/new", "tests/test_a.py"]
    assert protected_changes(store, base, base, ["**"]) == []
