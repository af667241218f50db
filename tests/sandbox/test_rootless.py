"""Sandboxes without an engine, for a user who is not root: refused with what is missing, never run without limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.sandbox.oci.rootless import lacking

NOBODY = 65534
CHOOSE = """
import os
from pathlib import Path
from ledger.errors import Unfit
from patchyard.backends import choose_backend
from patchyard.settings import load_settings
import runners.sandbox.oci, runners.sandbox.oci.rootless  # who is not root may be unable to reach this folder
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
try:
    chosen = choose_backend(load_settings(home=Path('/nonexistent'), sandbox_backend='{backend}'))
except Unfit as unfit:
    print('unfit:', unfit.message)
else:
    print(chosen.backend, chosen.why)
"""


def _delegated(root: Path, controllers: str = "cpu memory pids") -> dict[str, Path]:
    """A host of version 2 with a cgroup that was delegated to this very user, and ids to map."""
    for folder, text in {
        "proc/sys/user/max_user_namespaces": "1000", "proc/self/cgroup": "0::/user.slice/mine\n",
        "etc/subuid": f"{NOBODY}:100000:65536\n", "cgroup/cgroup.controllers": "cpuset cpu io memory pids",
        "cgroup/user.slice/mine/cgroup.controllers": controllers,
    }.items():  # fmt: skip
        (root / folder).parent.mkdir(parents=True, exist_ok=True)
        (root / folder).write_text(text)
    return {"proc": root / "proc", "etc": root / "etc", "cgroups": root / "cgroup"}


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of newuidmap and newgidmap, which not every machine has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("newuidmap", "newgidmap"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.usefixtures("helpers")
def test_where_all_is_delegated_nothing_is_lacking(tmp_path: Path) -> None:
    assert lacking(NOBODY, **_delegated(tmp_path)) == []


def test_without_the_programs_that_map_ids_they_are_named(tmp_path: Path, helpers: Path) -> None:
    (helpers / "newgidmap").unlink()
    assert lacking(NOBODY, **_delegated(tmp_path)) == ["newgidmap (package uidmap)"]


@pytest.mark.usefixtures("helpers")
@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("proc/sys/user/max_user_namespaces", "0", "user namespaces are turned off"),
        ("proc/sys/kernel/unprivileged_userns_clone", "0", "user namespaces are turned off"),
        ("etc/subuid", "somebody:100000:65536\n", "65536 subordinate ids"),
        ("cgroup/user.slice/mine/cgroup.controllers", "pids", "the cgroup controllers cpu, memory"),
        ("cgroup/cgroup.controllers", None, "a host of cgroup version 2"),
    ],
)
def test_each_thing_that_is_missing_is_named(tmp_path: Path, file: str, text: str | None, told: str) -> None:
    places = _delegated(tmp_path)
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    [what] = lacking(NOBODY, **places)
    assert what.startswith(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("backend", "begins"), [("oci", "unfit: "), ("auto", "docker ")])
def test_whoever_is_not_root_is_told_what_would_be_unbounded(backend: str, begins: str) -> None:
    argv = [sys.executable, "-c", CHOOSE.format(backend=backend, uid=NOBODY)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(begins)
    assert "sandboxes without an engine need root" in done.stdout
    assert "their limits of memory, processes and processors could not be enforced" in done.stdout
    assert all(what in done.stdout for what in lacking(NOBODY))
