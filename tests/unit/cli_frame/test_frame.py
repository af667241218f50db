"""The command line's frame: quick to list, one line for an error, a status that scripts can rely on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.errors import BadInput, LedgerUnavailable, PatchyardError, Permanent, Uncertain, Unfit
from patchyard.cli import COMMANDS, run
from patchyard.cli.console import ExitStatus, status_of

PATCHYARD = [sys.executable, "-m", "patchyard.cli"]


def patchyard(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [*PATCHYARD, *arguments], cwd=cwd, env=kept | env, capture_output=True, text=True, check=False, timeout=60
    )


def test_help_lists_every_command_without_importing_one(tmp_path: Path) -> None:
    script = "import sys; from patchyard.cli import run; run(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    for name in COMMANDS:
        assert f" {name} " in done.stdout
    loaded = set(done.stderr.split())
    assert not loaded & {"pydantic", "celery", "psycopg", "docker", "redis", "pygit2", "patchyard.settings"}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"patchyard {name}" in shown
    assert "Example" in shown


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "patchyard"


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["ps", "--nonsense"], ["ps", "too", "much"]])
def test_a_wrong_command_line_is_one_line_and_status_2(arguments: list[str], tmp_path: Path) -> None:
    done = patchyard(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "--help" in done.stderr


def test_without_a_command_the_help_is_shown_and_the_status_is_2(tmp_path: Path) -> None:
    done = patchyard(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage" in done.stdout


def test_bad_input_is_one_line_and_status_2_with_its_traceback_on_demand(tmp_path: Path) -> None:
    done = patchyard("ps", cwd=tmp_path, PATCHYARD_LEASE_SECONDS="never")
    assert done.returncode == 2
    assert done.stderr.startswith("patchyard: PATCHYARD_LEASE_SECONDS: ")
    assert len(done.stderr.splitlines()) == 1
    debugged = patchyard("ps", cwd=tmp_path, PATCHYARD_LEASE_SECONDS="never", PATCHYARD_DEBUG="1")
    assert "Traceback" in debugged.stderr
    assert debugged.returncode == 2


def test_a_variable_that_nobody_reads_is_a_warning(tmp_path: Path) -> None:
    done = patchyard("ps", cwd=tmp_path, PATCHYARD_SANDBOX_SLOT="4", PATCHYARD_ODD="s3cret")
    assert done.returncode == 0
    assert done.stderr.splitlines()[:2] == [
        "patchyard: PATCHYARD_ODD is no setting and does nothing; `patchyard doctor` lists the settings",
        "patchyard: PATCHYARD_SANDBOX_SLOT is no setting and does nothing; did you mean PATCHYARD_SANDBOX_SLOTS?",
    ]
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["build", "sandbox-python", "nosuch"], ["lock", "nosuch", "--file", "lock.toml"]]
)
def test_an_image_without_a_recipe_is_one_line_before_anything_is_built(arguments: list[str], tmp_path: Path) -> None:
    done = patchyard("images", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "patchyard: nosuch: no such recipe; known recipes: sandbox-python\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unfit_machine_is_one_line_and_status_3(tmp_path: Path) -> None:
    done = patchyard("up", cwd=tmp_path, PATCHYARD_BROKER_URL="redis://:s3cret@127.0.0.1:1/0")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "redis://:********@127.0.0.1:1/0" in done.stderr
    assert "PATCHYARD_BROKER_URL" in done.stderr


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("x"), ExitStatus.BAD_INPUT),
        (Unfit("x"), ExitStatus.UNFIT),
        (LedgerUnavailable(), ExitStatus.UNFIT),
        (Permanent(), ExitStatus.NOT_ALL_DONE),
        (Uncertain(), ExitStatus.NOT_ALL_DONE),
    ],
)
def test_a_status_follows_from_the_class_of_the_error(error: PatchyardError, status: ExitStatus) -> None:
    assert status_of(error) is status


def test_a_reader_that_goes_away_is_no_error_of_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m patchyard.cli doctor --json | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""
