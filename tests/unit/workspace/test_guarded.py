"""What a patch may not change of the way tests run, told from two trees."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.records.job import Acceptance, Tests
from runners.guarded import protected_changes
from runners.workspace.diff import changed_paths
from runners.workspace.store import EXECUTABLE, FILE, SYMLINK, Change, Store
from tests.unit.policy.test_tools import job
from tests.unit.workspace.trees import write

TEXT = Change(FILE, b"one\n")
BASE = {
    "src/a.py": TEXT,
    "tests/test_a.py": TEXT,
    "tests/b": TEXT,
    "run.sh": TEXT,
    "Makefile": TEXT,
    "conftest.py": TEXT,
    "calendar.py": TEXT,
    "pyproject.toml": Change(FILE, b"[project]\nname = 'a'\n[tool.pytest.ini_options]\naddopts = '-q'\n"),
    "setup.cfg": Change(FILE, b"[metadata]\nname = a\n[tool:pytest]\naddopts = -q\n[other]\n"),
    "package.json": Change(FILE, b'{"name": "a", "scripts": {"test": "jest"}}'),
}


def found(store: Store, changes: dict[str, Change | None], **fields: Any) -> dict[str, str]:
    base = write(store, BASE)
    tree = store.with_changes(base, changes)
    return protected_changes(store, job(**({"base_tree": base} | fields)), tree, changed_paths(store, base, tree))


def test_a_change_of_any_kind_to_a_protected_path_is_found(store: Store) -> None:
    changes = {"tests/test_a.py": Change(EXECUTABLE, TEXT.data), "tests/b": None, "tests/new": TEXT, "src/a.py": None}
    wrong = dict.fromkeys(("tests/b", "tests/new", "tests/test_a.py"), "is protected")
    assert found(store, changes, protected=("tests/**",)) == wrong
    assert found(store, {}, protected=("**",)) == {}


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py", "src/conftest.py", "pytest.ini", "x/.pytest.ini", "pytest.toml", "sitecustomize.py",
        "usercustomize.py", "x.pth", "evil.egg-info/entry_points.txt", "evil.dist-info/entry_points.txt",
        "tests/__pycache__/test_a.cpython-311-pytest-7.2.1.pyc", "src/a.pyc", ".coveragerc", "new\n/conftest.py",
    ],
)  # fmt: skip
def test_what_decides_how_tests_run_is_protected_in_every_job(store: Store, path: str) -> None:
    changes: dict[str, Change | None] = {path: Change(FILE, b"two\n")}
    assert found(store, changes) == {path: "decides how tests run"}
    assert found(store, changes, protected=("tests/**", f"!{path.rpartition('/')[2]}", "!*-info/**", "!**/*.pyc")) == {}


@pytest.mark.parametrize(
    "path",
    ["pytest.py", "_pytest/__init__.py", "pluggy/__init__.py", "json.py", "xml/__init__.py",
     "json.cpython-311-x86_64-linux-gnu.so", "src/a.so", "tests/test_a/__init__.py", "src/a/__init__.py"],
)  # fmt: skip
def test_a_module_that_would_be_imported_in_place_of_another_is_found(store: Store, path: str) -> None:
    (why,) = found(store, {path: TEXT}).values()
    assert why.startswith("would be imported in place of")
    assert found(store, {path: TEXT}, protected=(f"!/{path}",)) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"src/json.py": TEXT, "src/new/__init__.py": TEXT, "test/__init__.py": TEXT, "email/letter.txt": TEXT},
        {"calendar.py": Change(FILE, b"two\n")},
        {"src/a.py": None, "src/a/__init__.py": TEXT},
        {"pyproject.toml": Change(FILE, BASE["pyproject.toml"].data.replace(b"'a'", b"'b'"))},
        {"setup.cfg": Change(FILE, BASE["setup.cfg"].data.replace(b"= a", b"= b").replace(b"other", b"more"))},
        {"package.json": Change(FILE, b'{"scripts": {"test": "jest"}, "name": "b", "dependencies": {"c": "1"}}')},
        {"run.sh": None, "Makefile": None},
        {"README": TEXT, "Readme.md": TEXT},
    ],
)
def test_what_is_none_of_the_tests_business_may_change(store: Store, changes: dict[str, Change | None]) -> None:
    assert found(store, changes) == {}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("pyproject.toml", b"[project]\nname = 'a'\n[tool.pytest.ini_options]\naddopts = '-q -p evil'\n"),
        ("pyproject.toml", b"[project]\nname = 'a'\n"),
        ("pyproject.toml", b"[[[\n"),
        ("pyproject.toml", b"[project.entry-points.pytest11]\ne = 'e'\n[tool.pytest.ini_options]\naddopts = '-q'\n"),
        ("sub/pyproject.toml", b"[tool.pytest.ini_options]\naddopts = '-p evil'\n"),
        ("setup.cfg", b"[metadata]\nname = a\n[tool:pytest]\naddopts = -p evil\n[other]\n"),
        ("setup.cfg", b"[metadata]\x0b[tool:pytest]\naddopts = -p evil\n"),
        ("tox.ini", b"[pytest]\naddopts = -p evil\n"),
        ("package.json", b'{"name": "a", "scripts": {"test": "true"}}'),
        ("setup.cfg", b"\xff"),
    ],
)
def test_the_part_of_a_file_that_is_a_test_runner_s_is_protected(store: Store, path: str, data: bytes) -> None:
    assert found(store, {path: Change(FILE, data)}) == {path: "tells the test runner something else"}
    assert found(store, {path: Change(FILE, data)}, protected=(f"!{path}",)) == {}


def test_a_link_in_place_of_settings_is_none_of_the_same(store: Store) -> None:
    assert list(found(store, {"pyproject.toml": Change(SYMLINK, b"src/a.py")})) == ["pyproject.toml"]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("./run.sh",), "run.sh"),
        (("sh", "run.sh", "--fast"), "run.sh"),
        (("sh", "-c", "set -e; cd /workspace&&./run.sh>/tmp/log"), "run.sh"),
        (("sh", "/workspace/run.sh"), "run.sh"),
        (("make", "test"), "Makefile"),
        (("sh", "-c", "make -s test || exit 1"), "GNUmakefile"),
        (("tox", "-e", "py"), "sub/tox.ini"),
    ],
)
def test_what_the_test_command_runs_is_protected(store: Store, command: tuple[str, ...], path: str) -> None:
    change: dict[str, Change | None] = {path: Change(FILE, b"true\n")}
    wrong = {path: "is what the test command runs"}
    assert found(store, change, tests=Tests(command=command)) == wrong
    accepted = Acceptance(command=command, fail_to_pass=("x",))
    assert found(store, change, tests=None, acceptance=accepted) == wrong
    assert found(store, change, tests=Tests(command=command), protected=(f"!{path}",)) == {}


def test_test_modules_that_a_command_names_are_the_job_s_to_protect(store: Store) -> None:
    tests = Tests(command=("python3", "-m", "pytest", "tests/test_a.py"))
    assert found(store, {"tests/test_a.py": Change(FILE, b"two\n")}, tests=tests) == {}


@pytest.mark.parametrize(
    ("path", "twin"),
    [
        ("Tests/test_a.py", "tests"),
        ("tests/TEST_A.py", "tests/test_a.py"),
        ("SRC/x/y", "src"),
        ("src/A.py", "src/a.py"),
    ],
)
def test_a_name_that_is_another_where_names_have_no_case_is_found(store: Store, path: str, twin: str) -> None:
    assert found(store, {path: TEXT}) == {path: f"is {twin} where names have no case"}
