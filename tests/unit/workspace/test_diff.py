from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from ledger.errors import BadInput
from runners.workspace.diff import (
    ChangedPath,
    PatchTooBig,
    changed_paths,
    matches,
    patch_bytes,
    shown_patch,
)
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


def leads_in_a_circle(files: Files, link: str) -> bool:
    """Whether following a link of this tree never ends."""
    at = link
    for _ in range(len(files) + 1):
        change = files.get(at)
        if change is None or change.mode != SYMLINK:
            return False
        at = os.path.normpath(os.path.join(os.path.dirname(at), os.fsdecode(change.data)))
    return True


def is_beyond_git(before: Files, after: Files) -> bool:
    """Whether a folder takes the place of a link that leads in a circle: `git apply` looks for the new files through
    the link, before it removes it, and gives up. It does so on git's own patch too."""
    below = [link for link in before if any(path.startswith(f"{link}/") for path in after)]
    return any(leads_in_a_circle(before, link) for link in below)


@settings(max_examples=60, deadline=None)
@given(before=file_sets(), after=file_sets())
def test_git_apply_makes_the_same_tree_of_the_patch(shared_store: Store, before: Files, after: Files) -> None:
    old, new = write(shared_store, before), write(shared_store, after)
    patch = patch_bytes(shared_store, old, new)
    assert (patch == b"") == (old == new)
    assume(not is_beyond_git(before, after))
    assert apply_with_git(shared_store, old, patch) == new


def test_a_link_in_a_circle_that_becomes_a_folder_is_beyond_git_itself(store: Store, tmp_path: Path) -> None:
    before, after = {"a": Change(SYMLINK, b"a")}, {"a/a": Change(FILE, b"")}
    old, new = write(store, before), write(store, after)
    assert is_beyond_git(before, after)
    own = git(store.path, "diff", "--full-index", "--binary", "--no-renames", old, new)
    assert patch_bytes(store, old, new) == own
    for patch in (own, patch_bytes(store, old, new)):
        with pytest.raises(AssertionError, match="Too many levels of symbolic links"):
            apply_with_git(store, old, patch)


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


ODD = {
    "latin-1": (b"caf\xe9\r\n" * 3, b"caf\xe9\r\nth\xe9\r\n"),
    "utf-16": ("a\nb\n".encode("utf-16"), "a\nc\n".encode("utf-16")),
    "a NUL late in the file": (b"x\n" * 9_000 + b"\0\n", b"y\n" + b"x\n" * 9_000 + b"\0\n"),
    "from text to bytes": (b"text\n", b"\xff\xfe\x80"),
    "a long line of a function above": (
        ("defx " + "\u00e4" * 60 + "():\n").encode() + b"    a\n" * 20,
        ("defx " + "\u00e4" * 60 + "():\n").encode() + b"    a\n" * 19 + b"    b\n",
    ),
    "no newline at the end, in another way": ("\u2028".encode(), "\u2028\x85\x0b".encode()),
    "17 MB of lines": (b"0123456\n" * 2_200_000, b"0123456\n" * 2_200_001),
}


@pytest.mark.parametrize("odd", ODD)
def test_every_patch_is_text_that_git_applies_byte_for_byte(store: Store, odd: str) -> None:
    before, after = ODD[odd]
    old, new = write(store, {"f": Change(FILE, before)}), write(store, {"f": Change(FILE, after)})
    patch = patch_bytes(store, old, new)
    assert "\0" not in patch.decode()
    assert apply_with_git(store, old, patch) == new
    assert apply_with_git(store, new, patch_bytes(store, new, old)) == old
    assert apply_with_git(store, EMPTY_TREE, patch_bytes(store, EMPTY_TREE, new)) == new


def test_a_patch_over_the_cap_is_packed_and_git_applies_it(store: Store) -> None:
    old = write(store, {"a": Change(FILE, b"0123456\n" * 50_000), "gone": TEXT})
    new = write(store, {"a": Change(EXECUTABLE, b"x\n" * 100_000), "new": TEXT, "empty": Change(FILE, b"")})
    whole = patch_bytes(store, old, new)
    packed = patch_bytes(store, old, new, max_bytes=20_000)
    assert len(packed) < 20_000 < len(whole)
    assert apply_with_git(store, old, packed) == new
    with pytest.raises(PatchTooBig):
        patch_bytes(store, old, new, max_bytes=100)


def test_a_patch_to_be_read_has_lines_in_any_encoding(store: Store) -> None:
    old, new = (write(store, {"f": Change(FILE, data)}) for data in (b"caf\xe9\n", b"th\xe9\n"))
    assert b"-caf\xe9\n+th\xe9\n" in shown_patch(store, old, new)
    assert b"GIT binary patch" in patch_bytes(store, old, new)


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
