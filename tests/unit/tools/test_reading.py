"""list_files, read_file, search and show_diff: what they show, and that they show no more than they may."""

from __future__ import annotations

import time
from typing import Any

import pytest

from policy.errors import ToolFailure
from policy.tools import CONTRACTS
from runners.tools.list_files import list_files
from runners.tools.observed import Observed, ToolLimits
from runners.tools.read_file import read_file
from runners.tools.search import regex, search
from runners.tools.show_diff import show_diff
from runners.workspace.store import EMPTY_TREE, SUBMODULE, SYMLINK, Change, Store
from tests.unit.tools.conftest import TreeOf

LIMITS = ToolLimits()


def call(store: Store, tree: str, tool: str, limits: ToolLimits = LIMITS, base: str = "", **arguments: Any) -> Observed:
    args = CONTRACTS[tool].parse(arguments)
    if tool == "show_diff":
        return show_diff(store, base or tree, tree, args, limits)
    return {"list_files": list_files, "read_file": read_file, "search": search}[tool](store, tree, args, limits)


def code_of(store: Store, tree: str, tool: str, limits: ToolLimits = LIMITS, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as failed:
        call(store, tree, tool, limits, **arguments)
    return failed.value.code


# -- list_files -----------------------------------------------------------------------------------------------------


def test_files_are_listed_with_size_links_with_their_target_submodules_as_such(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a b/ü.py": "123", "link": Change(SYMLINK, b"a b")})
    tree = store.with_entries(tree, {"sub": (SUBMODULE, "1" * 40)})
    assert call(store, tree, "list_files").data == {
        "entries": [
            {"path": "a b/ü.py", "size": 3},
            {"path": "link", "link": "a b"},
            {"path": "sub", "submodule": "1" * 40},
        ],
        "total": 3,
        "truncated": False,
    }


def test_a_listing_can_be_of_a_folder_by_a_pattern_and_folded(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"src/a/1.py": "", "src/a/2.py": "", "src/b.py": "", "src/a/x/3.txt": "", "README.md": ""})
    paths = [row["path"] for row in call(store, tree, "list_files", path="src/", glob="*.py").data["entries"]]
    assert paths == ["src/a/1.py", "src/a/2.py", "src/b.py"]
    assert call(store, tree, "list_files", depth=1).data["entries"] == [
        {"path": "README.md", "size": 0},
        {"path": "src/", "files": 4},
    ]
    assert call(store, tree, "list_files", path="src", depth=1).data["entries"] == [
        {"path": "src/a/", "files": 3},
        {"path": "src/b.py", "size": 0},
    ]


def test_a_listing_is_bounded_and_says_so(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({f"f{number:03}": "" for number in range(20)})
    seen = call(store, tree, "list_files", max_entries=5)
    assert (len(seen.data["entries"]), seen.data["total"], seen.truncated) == (5, 20, True)
    small = call(store, tree, "list_files", ToolLimits(text_bytes=100))
    assert len(small.data["entries"]) == 3
    assert small.truncated


def test_a_name_that_is_no_utf8_is_shown_escaped(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({b"caf\xe9".decode("utf-8", "surrogateescape"): "x"})
    path = call(store, tree, "list_files").data["entries"][0]["path"]
    assert path == "caf\\udce9"
    path.encode()


def test_listing_what_is_not_there_fails(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "1"})
    assert code_of(store, tree, "list_files", path="nowhere") == "ENOENT"
    assert code_of(store, tree, "list_files", path="../x") == "EPATH"
    assert code_of(store, tree, "list_files", glob="*a*b*c*d*e") == "EINVAL"
    assert code_of(store, tree, "list_files", glob="[z-a]") == "EINVAL"
    assert code_of(store, tree, "list_files", glob="!") == "EINVAL"


# -- read_file ------------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_its_version_and_how_its_lines_end(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "one\r\ntwo\r\n"})
    entry = store.entry(tree, "a")
    assert entry is not None
    assert call(store, tree, "read_file", path="a").data == {
        "path": "a",
        "version": entry.id,
        "lines": [1, 2],
        "total_lines": 2,
        "text": "one\r\ntwo\r\n",
        "truncated": False,
        "line_endings": "crlf",
        "final_newline": True,
    }


@pytest.mark.parametrize(
    ("lines", "text", "shown"),
    [([2, 3], "2\n3", [2, 3]), ([1, 1], "1\n", [1, 1]), ([3, 9], "3", [3, 3])],
)
def test_a_part_of_a_file_is_read(store: Store, tree_of: TreeOf, lines: list[int], text: str, shown: list[int]) -> None:
    data = call(store, tree_of({"a": "1\n2\n3"}), "read_file", path="a", lines=lines).data
    assert (data["text"], data["lines"], data["total_lines"]) == (text, shown, 3)
    assert data["truncated"] is False


def test_a_long_file_is_cut_at_a_line_and_tells_where_to_go_on(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "12345\n" * 10})
    seen = call(store, tree, "read_file", ToolLimits(text_bytes=20), path="a", lines=[2, 9])
    assert seen.data["text"] == "12345\n" * 3
    assert (seen.data["lines"], seen.data["next_line"], seen.truncated) == ([2, 4], 5, True)


def test_a_line_that_is_too_long_is_cut(store: Store, tree_of: TreeOf) -> None:
    seen = call(store, tree_of({"a": "x" * 50}), "read_file", ToolLimits(text_bytes=20), path="a")
    assert (seen.data["text"], seen.data["truncated"], seen.truncated) == ("x" * 20, True, True)


def test_an_empty_file_has_no_lines(store: Store, tree_of: TreeOf) -> None:
    data = call(store, tree_of({"a": ""}), "read_file", path="a").data
    assert (data["text"], data["lines"], data["total_lines"]) == ("", None, 0)


def test_bytes_that_are_no_utf8_are_shown_as_such(store: Store, tree_of: TreeOf) -> None:
    assert call(store, tree_of({"a": b"caf\xe9\n"}), "read_file", path="a").data["text"] == "caf\ufffd\n"


def test_what_can_not_be_read_says_why(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"d/x": "1", "bin": b"x\0", "link": Change(SYMLINK, b"/etc/passwd"), "big": "x" * 100})
    assert code_of(store, tree, "read_file", path="bin") == "EBINARY"
    assert code_of(store, tree, "read_file", path="d") == "EPATH"
    assert code_of(store, tree, "read_file", path="link") == "EPATH"
    assert code_of(store, tree, "read_file", path="/etc/passwd") == "EPATH"
    assert code_of(store, tree, "read_file", path="nope") == "ENOENT"
    assert code_of(store, tree, "read_file", ToolLimits(file_bytes=99), path="big") == "ETOOBIG"
    assert code_of(store, tree, "read_file", path="big", lines=[2, 2]) == "EINVAL"


# -- search ---------------------------------------------------------------------------------------------------------


def test_lines_that_match_are_found_in_text_files_only(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of(
        {"a.py": "def f():\r\n    return x1\r\n", "b.txt": "x1\n", "bin": b"x1\0", "link": Change(SYMLINK, b"x1")}
    )
    assert call(store, tree, "search", pattern=r"x\d$").data == {
        "matches": [{"path": "a.py", "line": 2, "text": "    return x1"}, {"path": "b.txt", "line": 1, "text": "x1"}],
        "files_searched": 2,
        "truncated": False,
    }
    assert [row["path"] for row in call(store, tree, "search", pattern="x1", glob="*.py").data["matches"]] == ["a.py"]


def test_plain_text_is_no_pattern(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "f(x)\nfx\nF(X)\n"})
    assert [row["line"] for row in call(store, tree, "search", pattern="f(x)", fixed=True).data["matches"]] == [1]
    both = call(store, tree, "search", pattern="f(x)", fixed=True, ignore_case=True).data["matches"]
    assert [row["line"] for row in both] == [1, 3]
    assert len(call(store, tree, "search", pattern="^F", ignore_case=True).data["matches"]) == 3


def test_matches_are_bounded_in_number_and_in_text(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "x\n" * 10, "long": "y" * 1_000 + "needle" + "y" * 1_000})
    seen = call(store, tree, "search", pattern="x", max_results=3)
    assert (len(seen.data["matches"]), seen.truncated, seen.data["stopped_by"]) == (3, True, "max_results")
    assert call(store, tree, "search", ToolLimits(text_bytes=4), pattern="x").data["stopped_by"] == "text_bytes"
    exact = call(store, tree, "search", pattern="x", max_results=10)
    assert exact.truncated is False
    fragment = call(store, tree, "search", pattern="needle").data["matches"][0]["text"]
    assert "needle" in fragment
    assert len(fragment) == LIMITS.fragment_chars


def test_a_search_reads_only_so_many_bytes(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "x" * 50, "b": "x" * 50, "c": "x" * 200})
    seen = call(store, tree, "search", ToolLimits(search_bytes=60, search_file_bytes=100), pattern="x")
    assert (len(seen.data["matches"]), seen.data["stopped_by"]) == (1, "search_bytes")
    seen = call(store, tree, "search", ToolLimits(search_file_bytes=100), pattern="x")
    assert (len(seen.data["matches"]), seen.data["files_too_big"]) == (2, 1)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("foo(", "unclosed group"),
        (r"(a)\1", "backreferences"),
        ("(?=a)b", "look-around"),
        ("(?:a{100}){1000}", "counted repetitions"),
        ("(?x) (?: a ) # c\n {30000}", "counted repetitions"),
        ("a{200}{200}", "counted repetitions"),
        (r"\w{19000}", "size limit"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_the_reason(
    store: Store, tree_of: TreeOf, pattern: str, why: str
) -> None:
    with pytest.raises(ToolFailure, match=why) as failed:
        call(store, tree_of({"a": "x"}), "search", pattern=pattern)
    assert failed.value.code == "EINVAL"


@pytest.mark.parametrize(
    "pattern",
    [r"(a*)*$b", r"(a|a|aa)*c", r"^(a+)+$", r"(?:a?){120}a{120}[bc]", r"[ab]*a[ab]{3000}[xy]", r"(x+x+)+y"],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    matcher = regex(pattern, ignore_case=False)
    started = time.monotonic()
    for line in ("a" * 4_000, "ab" * 2_000, "x" * 4_000):
        matcher(line + "!")
    assert time.monotonic() - started < 30


def test_a_search_that_runs_out_of_time_says_so(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": "x\n" * 10})
    assert code_of(store, tree, "search", ToolLimits(search_seconds=-1), pattern="x") == "ETIMEDOUT"


def test_the_clock_is_looked_at_between_lines_too(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({"a": ("a" * 3_999 + "\n") * 250})
    started = time.monotonic()
    assert code_of(store, tree, "search", ToolLimits(search_seconds=0.1), pattern="[ab]*a[ab]{3000}[xy]") == "ETIMEDOUT"
    assert time.monotonic() - started < 30


# -- show_diff ------------------------------------------------------------------------------------------------------


def test_what_changed_is_shown_as_a_patch(store: Store, tree_of: TreeOf) -> None:
    base = tree_of({"a": "1\n", "gone": "x\n", "same": "s\n"})
    tree = tree_of({"a": "2\n", "new/f": "n\n", "same": "s\n"})
    data = call(store, tree, "show_diff", base=base).data
    assert data["files"] == [
        {"path": "a", "change": "modified"},
        {"path": "gone", "change": "deleted"},
        {"path": "new/f", "change": "added"},
    ]
    assert "-1\n+2\n" in data["patch"]
    assert (data["files_changed"], data["truncated"]) == (3, False)
    assert call(store, base, "show_diff", base=base).data["patch"] == ""


def test_a_part_of_the_changes_is_shown(store: Store, tree_of: TreeOf) -> None:
    base, tree = tree_of({"a": "1\n", "d/x": "x\n"}), tree_of({"a": "2\n", "d/y": "y\n"})
    data = call(store, tree, "show_diff", base=base, glob="d/**").data
    assert [row["path"] for row in data["files"]] == ["d/x", "d/y"]
    assert "a/a" not in data["patch"]
    assert "+y" in data["patch"]


def test_a_long_diff_is_cut_between_files(store: Store, tree_of: TreeOf) -> None:
    tree = tree_of({f"f{number}": f"line of {number}\n" for number in range(9)})
    whole = call(store, tree, "show_diff", base=EMPTY_TREE).data["patch"]
    seen = call(store, tree, "show_diff", ToolLimits(diff_bytes=len(whole) - 1, diff_files=5), base=EMPTY_TREE)
    assert seen.truncated
    assert seen.data["patch"].count("diff --git") == 8
    assert whole.startswith(seen.data["patch"])
    assert (len(seen.data["files"]), seen.data["files_changed"]) == (5, 9)
    tiny = call(store, tree, "show_diff", ToolLimits(diff_bytes=10), base=EMPTY_TREE)
    assert tiny.data["patch"] == "diff --git"
