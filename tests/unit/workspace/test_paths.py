from __future__ import annotations

import pytest

from runners.workspace.errors import InvalidPath
from runners.workspace.paths import check_path, decode_path


@pytest.mark.parametrize(
    "path",
    ["a", "a/b", "with space", "new\nline", "-x", ".gitignore", "git", "a.git", ".github/x", "..a", "a..", "git~2",
     "\udcff", ".gitmodules", "con", "a\\b"],
)  # fmt: skip
def test_an_ordinary_path_keeps_its_bytes(path: str) -> None:
    assert decode_path(check_path(path)) == path


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/passwd", "absolute_path"),
        ("a/../b", "escaping_path"),
        ("..", "escaping_path"),
        ("", "bad_path"),
        ("a//b", "bad_path"),
        ("a/", "bad_path"),
        ("./a", "bad_path"),
        ("a\0b", "bad_path"),
        ("x" * 256, "bad_path"),
        ("\u00e4" * 128, "bad_path"),
        ("/".join("a" * 201), "bad_path"),
        ("/".join(["y" * 250] * 17), "bad_path"),
        ("\ud800", "bad_path"),
        (".git", "git_folder"),
        ("a/.GIT/config", "git_folder"),
        (".Git/hooks/post-checkout", "git_folder"),
        (".g\u200cit/config", "git_folder"),
        ("\ufeff.git", "git_folder"),
        ("git~1/config", "git_folder"),
        ("GIT~1", "git_folder"),
        (".git. . ", "git_folder"),
        (".git::$INDEX_ALLOCATION/config", "git_folder"),
        ("a\\.git\\config", "git_folder"),
    ],
)
def test_a_path_that_git_or_a_file_system_could_misread_is_invalid(path: str, code: str) -> None:
    with pytest.raises(InvalidPath) as refused:
        check_path(path)
    assert refused.value.code == code


def test_a_link_cannot_stand_for_gitmodules() -> None:
    with pytest.raises(InvalidPath):
        check_path("sub/.GitModules", link=True)
    assert check_path("sub/.gitmodules") == b"sub/.gitmodules"


def test_the_message_is_one_printable_line() -> None:
    with pytest.raises(InvalidPath) as refused:
        check_path("/a\nb\x1b[2J\udcff")
    assert refused.value.message == "an absolute path: /a\\nb\\x1b[2J\\udcff"
