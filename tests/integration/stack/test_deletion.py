"""`down --delete-data`: nothing of a stack is left on the machine, and nothing else is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchyard.local import deletion
from patchyard.local.account import ACCOUNT_HOME
from patchyard.local.home import open_home
from patchyard.local.stack import ensure_up
from patchyard.settings import load_settings
from tests.integration.stack.test_up_down import BACKEND


def down(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "patchyard.cli", "down", *arguments],
        env=dict(os.environ) | {"PATCHYARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_stack_in_a_closed_folder_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    home = tmp_path / "home"
    ensure_up(load_settings(home=home, sandbox_backend=BACKEND, docker_host=None), wait=False)
    data = (home / "servers").resolve()
    if os.geteuid() == 0:
        assert data.parent == ACCOUNT_HOME
        assert (data / "home").read_text() == f"{home}\n"
    kept = tmp_path / "another-disk"
    kept.mkdir()
    (kept / "mirror").touch()
    if (home / "mirrors").is_dir():
        (home / "mirrors").rmdir()
    (home / "mirrors").symlink_to(kept)
    assert down(home).returncode == 0
    assert data.is_dir()
    done = down(home, "--delete-data")
    assert (done.returncode, done.stdout) == (0, "nothing is left running\n")
    assert done.stderr.splitlines() == [f"{kept} stays: a link below {home} led to it", f"deleted {home}"]
    assert not data.exists()
    assert not home.exists()
    assert (kept / "mirror").exists()
    again = down(home, "--delete-data")
    assert (again.returncode, again.stderr) == (0, "")


def test_what_is_no_home_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").touch()
    refused = down(tmp_path / "home", "--delete-data")
    assert refused.returncode == 2
    assert refused.stderr == f"patchyard: {tmp_path}/home: is no PATCHYARD_HOME; delete it by hand if you mean it\n"
    assert (tmp_path / "home" / "thesis").exists()


def test_copies_of_programs_go_with_the_last_home_and_not_under_a_server_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "lib"
    monkeypatch.setattr(deletion, "ACCOUNT_HOME", ours)
    (ours / "programs").mkdir(parents=True)
    server = Path(shutil.copy2("/bin/sleep", ours / "programs" / "server"))
    (ours / "data-of-another-home").mkdir()
    settings = load_settings(home=tmp_path / "home")

    def delete() -> None:
        assert open_home(settings.home, create=True) is not None
        assert deletion.delete_home(settings, lambda _line: None) == ()
        assert not settings.home.exists()

    delete()
    assert server.exists()
    (ours / "data-of-another-home").rmdir()
    process = subprocess.Popen([server, "60"])
    try:
        delete()
        assert server.exists()
    finally:
        process.kill()
        process.wait()
    delete()
    assert not ours.exists()
