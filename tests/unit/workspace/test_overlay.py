from __future__ import annotations

import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.errors import BadInput
from runners.workspace.errors import RefusedWorkspace
from runners.workspace.overlay import lay_over, overlay_tar
from runners.workspace.store import EXECUTABLE, FILE, SYMLINK, Change, Store
from runners.workspace.tarball import TreeLimits
from tests.unit.workspace.test_stream import info, make_tar
from tests.unit.workspace.trees import read, write

TEXT = Change(FILE, b"text\n")


@pytest.fixture
def acceptance(tmp_path: Path) -> Path:
    folder = tmp_path / "acceptance"
    (folder / "tests/data").mkdir(parents=True)
    (folder / "tests/test_a.py").write_text("def test(): pass\n")
    (folder / "tests/run").write_text("#!/bin/sh\n")
    (folder / "tests/run").chmod(0o755)
    (folder / "tests/data/sp ace\n").write_text("")
    (folder / "tests/data/link").symlink_to("../test_a.py")
    (folder / "tests/__pycache__").mkdir()
    (folder / "tests/__pycache__/x.pyc").write_text("x")
    return folder


def test_acceptance_files_are_laid_over_the_tree(store: Store, acceptance: Path) -> None:
    tree = write(store, {"src/a.py": TEXT, "tests/test_a.py": TEXT, "tests/test_b.py": TEXT})
    files = read(store, lay_over(store, tree, overlay_tar(acceptance)))
    assert files == {
        "src/a.py": TEXT,
        "tests/test_b.py": TEXT,
        "tests/test_a.py": Change(FILE, b"def test(): pass\n"),
        "tests/run": Change(EXECUTABLE, b"#!/bin/sh\n"),
        "tests/data/sp ace\n": Change(FILE, b""),
        "tests/data/link": Change(SYMLINK, b"../test_a.py"),
    }


def test_what_the_agent_left_in_the_way_gives_way(store: Store, acceptance: Path) -> None:
    tar = overlay_tar(acceptance)
    expected = set(read(store, lay_over(store, write(store, {}), tar)))
    for trap in (
        {"tests": Change(SYMLINK, b"/tmp")},
        {"tests": Change(SYMLINK, b"src"), "src/a.py": TEXT},
        {"tests": TEXT},
        {"tests/test_a.py/x": TEXT, "tests/run/y": TEXT, "tests/data": Change(SYMLINK, b"..")},
    ):
        files = read(store, lay_over(store, write(store, trap), tar))
        assert files.keys() - {"src/a.py"} == expected
        assert files["tests/test_a.py"].data == b"def test(): pass\n"


def test_the_tar_is_the_same_for_the_same_files(acceptance: Path) -> None:
    first = overlay_tar(acceptance)
    for path in acceptance.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert overlay_tar(acceptance) == first


def test_one_file_is_laid_at_the_top_under_its_name(store: Store, acceptance: Path) -> None:
    tree = lay_over(store, write(store, {"a": TEXT}), overlay_tar(acceptance / "tests/test_a.py"))
    assert set(read(store, tree)) == {"a", "test_a.py"}


def line(path: Path, limits: TreeLimits | None = None) -> str:
    with pytest.raises(BadInput) as error:
        overlay_tar(path, limits or TreeLimits())
    return error.value.message


def test_what_is_no_folder_of_tests_is_one_clear_line(acceptance: Path, tmp_path: Path) -> None:
    assert line(tmp_path / "none") == f"{tmp_path}/none: no such file or folder; make it, or correct the path"
    assert line(acceptance / "../acceptance").endswith("a path with '..'; name a folder beside the batch file")
    (tmp_path / "empty").mkdir()
    assert line(tmp_path / "empty").endswith("empty: no files in it; put the acceptance tests there")


def test_too_much_is_one_clear_line(acceptance: Path) -> None:
    assert line(acceptance, TreeLimits(max_files=2)).endswith(
        "too many files cannot be part of a workspace; leave it out"
    )
    assert "too many bytes" in line(acceptance, TreeLimits(max_bytes=20))
    assert "larger than 5 bytes" in line(acceptance / "tests/test_a.py", TreeLimits(max_file_bytes=5))


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("out", lambda path: path.symlink_to("../../etc/passwd"), "a symbolic link that points out of the workspace"),
        ("absolute", lambda path: path.symlink_to("/etc/passwd"), "a symbolic link that points out of the workspace"),
        ("pipe", os.mkfifo, "a named pipe"),
        (".git", lambda path: path.mkdir(), "a path that git would take for its own folder"),
    ],
)
def test_what_cannot_travel_is_named(acceptance: Path, name: str, make: Callable[[Path], None], why: str) -> None:
    make(acceptance / name)
    assert line(acceptance) == f"{acceptance}/{name}: {why} cannot be part of a workspace; leave it out"


def test_a_socket_is_named(acceptance: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(acceptance)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        assert line(acceptance) == f"{acceptance}/sock: a socket cannot be part of a workspace; leave it out"


def test_a_hostile_overlay_is_refused(store: Store) -> None:
    for member in (
        info("../x"),
        info("/etc/x"),
        info(".git/x"),
        info("l", tarfile.SYMTYPE, "/etc"),
        info("f", tarfile.FIFOTYPE),
    ):
        with pytest.raises(RefusedWorkspace):
            lay_over(store, write(store, {"a": TEXT}), make_tar(member))
