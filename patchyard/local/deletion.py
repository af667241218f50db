"""Deletes what a stopped stack has kept: PATCHYARD_HOME, and what the servers' account has of it elsewhere.

Where that account cannot reach PATCHYARD_HOME, the database lies below the account's own folder, and so do copies of
programs that all homes of this machine share: whoever only removed PATCHYARD_HOME would leave both behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from ledger.errors import BadInput, Unfit
from patchyard.local.account import ACCOUNT_HOME
from patchyard.local.home import only_one, open_home
from patchyard.settings import Settings


def delete_home(settings: Settings, say: Callable[[str], None]) -> tuple[str, ...]:
    """Deletes the home of these settings, whose stack has been stopped.

    Returns the folders that stand in place of its own through a link: they are not ours to delete. Raises BadInput for
    a folder that is no home, Unfit where something cannot be deleted.
    """
    home = open_home(settings.home, create=False)
    if home is None:
        return ()
    if not home.run.folder.is_dir() or not home.logs.is_dir():
        raise BadInput("is no PATCHYARD_HOME", where=str(home.path), remedy="delete it by hand if you mean it")
    with only_one(home, say):
        folders = [*home.path.iterdir(), *(home.path / "oci").glob("*")]
        elsewhere = [found.resolve() for found in folders if found.is_symlink() and found.is_dir()]
        ours = [place for place in elsewhere if place.parent == ACCOUNT_HOME]
        try:
            for place in (*ours, home.path):
                shutil.rmtree(place)
            _delete_programs()
        except OSError as error:
            raise Unfit(f"{error.filename}: {error.strerror}", remedy="delete it by hand") from None
    return tuple(str(place) for place in elsewhere if place.exists())


def _delete_programs() -> None:
    """The copies of programs go with the last home that has data there, unless a server runs that is one of them."""
    programs = ACCOUNT_HOME / "programs"
    if not programs.is_dir() or any(found != programs for found in ACCOUNT_HOME.iterdir()):
        return
    if not any(_runs_from(process, programs) for process in psutil.process_iter()):
        shutil.rmtree(ACCOUNT_HOME)


def _runs_from(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.exe()).is_relative_to(folder)
    except (psutil.Error, OSError):
        return False
