"""apply_patch: all or none, in the version that was read, bytes kept that no edit names."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import ToolFailure
from policy.tools import CONTRACTS
from runners.tools.apply_patch import apply_patch
from runners.tools.observed import Observed, ToolLimits
from runners.workspace.store import EMPTY_TREE, EXECUTABLE, FILE, SYMLINK, Change, Store
from tests.unit.tools.conftest import TreeOf

LIMITS = ToolLimits()


def patch(store: Store, tree: str, *edits: dict[str, Any], limits: ToolLimits = LIMITS) -> Observed:
    return apply_patch(store, tree, CONTRACTS["apply_patch"].parse({"edits": list(edits)}), limits)


def edit(store: Store, tree: str, path: str, **fields: Any) -> dict[str, Any]:
    entry = store.entry(tree, path)
    return {"path": path, "version": entry.id if entry else "absent", **fields}


def content(store: Store, tree: str | None, path: str) -> bytes:
    assert tree is not None
    entry = store.entry(tree, path)
    assert entry is not None
    return store.blob(entry.id)


def failure(store: Store, tree: str, *edits: dict[str, Any], limits: ToolLimits = LIMITS) -> ToolFailure:
    with pytest.raises(ToolFailure) as failed:
        patch(store, tree, *edits, limits=limits)
    return failed.value


def test_text_that_occurs_once_is_replaced(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a.py": "x = 1\ny = 2\n", "b.py": "b\n"})
    done = patch(store, tree, edit(store, tree, "a.py", old="x = 1", new="x = 3"))
    assert content(store, done.tree, "a.py") == b"x = 3\ny = 2\n"
    assert content(store, done.tree, "b.py") == b"b\n"
    entry = store.entry(done.tree or "", "a.py")
    assert entry is not None
    assert done.data["changed"] == [
        {"path": "a.py", "version": entry.id, "was": edit(store, tree, "a.py")["version"], "total_lines": 2}
    ]


def test_lines_are_those_of_the_version_that_was_read(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n2\n3\n4\n5\n"})
    done = patch(
        store,
        tree,
        edit(store, tree, "a", lines=[1, 1], new="one\nuno\n"),
        edit(store, tree, "a", lines=[4, 5], new="end\n"),
        edit(store, tree, "a", lines=[3, 2], new="before three\n"),
        edit(store, tree, "a", old="2\n", new="two\n"),
    )
    assert content(store, done.tree, "a") == b"one\nuno\ntwo\nbefore three\n3\nend\n"


@pytest.mark.parametrize(
    ("before", "lines", "new", "after"),
    [
        ("1\n2\n", [1, 0], "0\n", "0\n1\n2\n"),
        ("1\n2\n", [3, 2], "3\n", "1\n2\n3\n"),
        ("1\n2\n", [3, 2], "3", "1\n2\n3\n"),
        ("1\n2", [3, 2], "3\n", "1\n2\n3\n"),
        ("1\n2", [3, 2], "3", "1\n2\n3"),
        ("1\n2\n", [1, 1], "one", "one\n2\n"),
        ("1\n2", [2, 2], "two", "1\ntwo"),
        ("1\n2", [2, 2], "two\n", "1\ntwo\n"),
        ("1\n2\n", [2, 2], "two", "1\ntwo\n"),
        ("1\n2\n", [1, 2], "", ""),
        ("1\n2", [2, 2], "", "1\n"),
        ("", [1, 0], "1", "1"),
        ("\n", [1, 1], "x", "x\n"),
        ("1\r\n2\r\n", [2, 2], "two\nthree", "1\r\ntwo\r\nthree\r\n"),
        ("1\r\n2\n", [2, 2], "two\nthree", "1\r\ntwo\nthree\n"),
        ("1\r\n2\r\n", [2, 2], "two\r\n", "1\r\ntwo\r\n"),
    ],
)
def test_whole_lines_stay_whole_lines(
    store: Store, tree_of: TreeOf, before: str, lines: list[int], new: str, after: str
) -> None:
    tree = tree_of({"f": before})
    done = patch(store, tree, edit(store, tree, "f", lines=lines, new=new))
    assert content(store, done.tree, "f") == after.encode()


def test_what_was_done_for_the_model_is_told(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"f": "1\r\n2\r\n", "g": "1\n2\n"})
    done = patch(
        store,
        tree,
        edit(store, tree, "f", old="1\n2", new="one\ntwo"),
        edit(store, tree, "g", lines=[1, 1], new="one"),
    )
    assert content(store, done.tree, "f") == b"one\r\ntwo\r\n"
    assert done.data["notes"] == [
        "f: its line endings are CRLF, and the new text got them too",
        "g: a newline was added where the text of an edit had none",
    ]


def test_a_new_file_is_made_with_its_folders(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "a\n"})
    done = patch(
        store,
        tree,
        {"path": "x/y/ü z.py", "version": "absent", "new": "pass"},
        {"path": "empty", "version": "absent", "new": ""},
    )
    assert content(store, done.tree, "x/y/ü z.py") == b"pass"
    assert content(store, done.tree, "empty") == b""
    assert {row["was"] for row in done.data["changed"]} == {"absent"}


def test_the_mode_of_a_file_and_its_undecodable_bytes_stay(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"run": Change(EXECUTABLE, b"#!/bin/sh\n# caf\xe9\necho 1\n")})
    done = patch(store, tree, edit(store, tree, "run", lines=[3, 3], new="echo 2\n"))
    entry = store.entry(done.tree or "", "run")
    assert entry is not None
    assert entry.mode == EXECUTABLE
    assert store.blob(entry.id) == b"#!/bin/sh\n# caf\xe9\necho 2\n"


def test_all_edits_apply_or_none(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n", "b": "2\n"})
    wrong = failure(
        store, tree, edit(store, tree, "a", old="1", new="x"), edit(store, tree, "b", old="not there", new="y")
    )
    assert wrong.code == "ENOMATCH"
    assert wrong.message.startswith("edits.1: ")
    assert content(store, tree, "a") == b"1\n"


def test_an_edit_that_changes_nothing_makes_no_tree(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n"})
    done = patch(store, tree, edit(store, tree, "a", old="1", new="1"))
    assert done.tree is None
    assert done.data == {"changed": [], "notes": ["nothing changed: the new text is the old text"]}


def test_a_version_that_is_not_the_present_one_is_stale(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n"})
    wrong = failure(store, tree, {"path": "a", "version": "0" * 40, "old": "1", "new": "2"})
    assert wrong.code == "ESTALE"
    assert edit(store, tree, "a")["version"] in wrong.message
    assert failure(store, tree, {"path": "a", "version": "absent", "new": "2"}).code == "ESTALE"


def test_text_that_occurs_twice_is_ambiguous_overlapping_too(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "x\ny\nx\n", "b": "aaa"})
    wrong = failure(store, tree, edit(store, tree, "a", old="x", new="z"))
    assert wrong.code == "EAMBIGUOUS"
    assert "lines 1 and 3" in wrong.message
    assert failure(store, tree, edit(store, tree, "b", old="aa", new="z")).code == "EAMBIGUOUS"


def test_a_near_miss_is_told_where_it_nearly_stood(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "one\n  two\nthree\n"})
    wrong = failure(store, tree, edit(store, tree, "a", old="two\nfour\n", new="z"))
    assert wrong.code == "ENOMATCH"
    assert "line 2" in wrong.message


@pytest.mark.parametrize(
    ("one", "other"), [([1, 3], [3, 4]), ([2, 3], [3, 2]), ([1, 4], [2, 2])], ids=["end", "insert", "inside"]
)
def test_edits_that_overlap_are_refused(store: Store, tree_of: TreeOf, one: list[int], other: list[int]) -> None:
    tree = tree_of({"a": "1\n2\n3\n4\n"})
    wrong = failure(
        store, tree, edit(store, tree, "a", lines=one, new="x\n"), edit(store, tree, "a", lines=other, new="y\n")
    )
    assert wrong.code == "EINVAL"
    assert "overlaps" in wrong.message


def test_edits_that_touch_do_not_overlap(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n2\n3\n"})
    done = patch(
        store,
        tree,
        edit(store, tree, "a", lines=[2, 2], new="two\n"),
        edit(store, tree, "a", lines=[2, 1], new="before\n"),
        edit(store, tree, "a", lines=[3, 2], new="after\n"),
        edit(store, tree, "a", lines=[3, 2], new="after that\n"),
    )
    assert content(store, done.tree, "a") == b"1\nbefore\ntwo\nafter\nafter that\n3\n"


def test_lines_that_the_file_does_not_have_are_invalid(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n2\n", "empty": ""})
    for lines in ([3, 3], [1, 3], [4, 3]):
        wrong = failure(store, tree, edit(store, tree, "a", lines=lines, new="x"))
        assert wrong.code == "EINVAL"
        assert "2 lines" in wrong.message
    assert failure(store, tree, edit(store, tree, "empty", lines=[1, 1], new="x")).code == "EINVAL"


def test_new_and_edited_in_one_call_is_invalid(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n"})
    twice = {"path": "b", "version": "absent", "new": "x"}
    assert failure(store, tree, twice, twice).code == "EINVAL"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../x", "EPATH"),
        ("/etc/passwd", "EPATH"),
        (".git/config", "EPATH"),
        ("a/./b", "EPATH"),
        ("file/below", "EPATH"),
        ("folder", "EPATH"),
        ("link", "EPATH"),
    ],
)
def test_a_new_file_needs_a_path_that_can_be_one(store: Store, tree_of: TreeOf, path: str, code: str) -> None:
    tree = tree_of({"file": "1\n", "folder/x": "2\n", "link": Change(SYMLINK, b"file")})
    assert failure(store, tree, {"path": path, "version": "absent", "new": "x"}).code == code


@pytest.mark.parametrize(
    ("path", "code"),
    [("missing", "ENOENT"), ("folder", "EPATH"), ("link", "EPATH"), ("binary", "EBINARY"), ("../file", "EPATH")],
)
def test_an_edit_needs_a_text_file(store: Store, tree_of: TreeOf, path: str, code: str) -> None:
    tree = tree_of({"folder/x": "2\n", "link": Change(SYMLINK, b"x"), "binary": b"a" * 9_000 + b"\0"})
    assert failure(store, tree, {"path": path, "version": "1" * 40, "old": "x", "new": "y"}).code == code


def test_a_file_that_would_be_too_big_is_refused(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n", "big": "x" * 2_000})
    small = ToolLimits(file_bytes=1_000)
    assert failure(store, tree, edit(store, tree, "a", old="1", new="y" * 1_001), limits=small).code == "ETOOBIG"
    assert failure(store, tree, {"path": "n", "version": "absent", "new": "y" * 1_001}, limits=small).code == "ETOOBIG"
    assert failure(store, tree, edit(store, tree, "big", old="x", new="y"), limits=small).code == "ETOOBIG"


def test_a_nul_character_is_refused(store: Store, tree_of: TreeOf) -> None:
    assert failure(store, EMPTY_TREE, {"path": "a", "version": "absent", "new": "a\0b"}).code == "EINVAL"


def test_the_same_patch_gives_the_same_tree(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1\n"})
    edits = [edit(store, tree, "a", old="1", new="2"), {"path": "n", "version": "absent", "new": "n\n"}]
    assert patch(store, tree, *edits).tree == patch(store, tree, *edits[::-1]).tree


# -- against a reference that works on lists of lines ---------------------------------------------------------------

LINE = st.text(alphabet="ab \t\xe9", max_size=4)


@st.composite
def files_and_edits(draw: st.DrawFn) -> tuple[list[str], bool, list[tuple[int, int, list[str]]]]:
    """Lines, whether the last one has a newline, and edits that do not overlap, in any order."""
    lines = draw(st.lists(LINE, max_size=8))
    final_newline = draw(st.booleans()) or not lines or lines[-1] == ""
    at, edits = 1, []
    while at <= len(lines) + 1 and draw(st.booleans()):
        first = draw(st.integers(at, len(lines) + 1))
        last = draw(st.integers(first - 1, len(lines)))
        edits.append((first, last, draw(st.lists(LINE, max_size=3))))
        at = last + 1 if last >= first else first + 1
    return lines, final_newline, draw(st.permutations(edits))


@settings(max_examples=300, deadline=None)
@given(files_and_edits())
def test_line_edits_do_what_a_list_of_lines_does(
    case: tuple[list[str], bool, list[tuple[int, int, list[str]]]],
) -> None:
    lines, final_newline, edits = case
    ended = [line + "\n" for line in lines]
    if ended and not final_newline:
        ended[-1] = lines[-1]
    text = "".join(ended)
    expected = list(ended)
    for first, last, new in sorted(edits, reverse=True):
        expected[first - 1 : last] = [line + "\n" for line in new]
    expected = [line if line.endswith("\n") or line is expected[-1] else line + "\n" for line in expected]
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "m.git")
        tree = store.with_changes(EMPTY_TREE, {"f": Change(FILE, text.encode())})
        calls = [
            edit(store, tree, "f", lines=[first, last], new="".join(line + "\n" for line in new))
            for first, last, new in edits
        ]
        done = patch(store, tree, *calls) if calls else None
        result = content(store, (done and done.tree) or tree, "f").decode()
    assert result == "".join(expected)


@settings(max_examples=200, deadline=None)
@given(
    before=st.text(alphabet="ab\n", max_size=12),
    old=st.text(alphabet="ab\n", min_size=1, max_size=3),
    new=st.text(alphabet="abc\n", max_size=4),
)
def test_text_edits_do_what_str_replace_does_or_fail(before: str, old: str, new: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "m.git")
        tree = store.with_changes(EMPTY_TREE, {"f": Change(FILE, before.encode())})
        occurrences = sum(before.startswith(old, at) for at in range(len(before)))
        call = edit(store, tree, "f", old=old, new=new)
        if occurrences == 1:
            done = patch(store, tree, call)
            assert content(store, done.tree or tree, "f").decode() == before.replace(old, new)
        else:
            assert failure(store, tree, call).code == ("EAMBIGUOUS" if occurrences else "ENOMATCH")
