"""PATCHYARD_HOME: its folders, the lock that one `up` or `down` holds, and where the servers may keep their data.

The servers run as an account that may not be able to reach PATCHYARD_HOME, which is often below somebody's home folder.
Nobody's folder is opened for that: the data then lie in a folder of ours, and PATCHYARD_HOME has a link to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import BadInput
from patchyard.local.account import ACCOUNT_HOME, Account
from patchyard.local.plan import RunFolder


@dataclass(frozen=True)
class Home:
    """The folder of one local stack; `path` is free of links, so that one stack has one name."""

    path: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.path / "run")

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def servers(self) -> Path:
        """Where the servers' data are, or a link to it."""
        return self.path / "servers"

    @property
    def engine(self) -> Path:
        """The folder of a private container engine."""
        return self.path / "engine"

    @property
    def state(self) -> Path:
        return self.path / "stack.json"

    @property
    def postgres_data(self) -> Path:
        return self.servers.resolve() / "postgres" / "data"

    def log(self, service: str) -> Path:
        return self.logs / f"{service}.log"


def open_home(path: Path, *, create: bool) -> Home | None:
    """The home at `path`; made when `create`, else None when there is none. `BadInput` when it can't be used."""
    home = Home(path.resolve())
    remedy = "set PATCHYARD_HOME to a folder that you may write to"
    try:
        if not create:
            return home if home.path.is_dir() else None
        if not home.path.is_dir():
            # Another `up` may make it in the same moment.
            home.path.mkdir(parents=True, exist_ok=True)
            home.path.chmod(0o711)
            # It often lies in somebody's repository, and its passwords and data are nothing to commit.
            (home.path / ".gitignore").write_text("*\n")
        home.run.folder.mkdir(mode=0o700, exist_ok=True)
        home.logs.mkdir(mode=0o750, exist_ok=True)
        if not os.access(home.run.folder, os.W_OK):
            raise BadInput("belongs to another user", where=str(home.path), remedy=remedy)
    except OSError as error:
        raise BadInput(f"{error.strerror}", where=str(home.path), remedy=remedy) from None
    return home


@contextmanager
def only_one(home: Home, say: Callable[[str], None]) -> Iterator[None]:
    """The lock of `up` and `down`: a second one waits, and says so. The kernel frees it when its holder dies."""
    try:
        file = home.run.lock.open("w")
    except OSError as error:
        raise BadInput(f"{error.strerror}", where=str(home.run.lock), remedy="run as the user who started it") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another patchyard that starts or stops this stack")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def server_folder(home: Home, account: Account, name: str, *, fresh: bool) -> Path:
    """The folder of the server `name`, owned by `account` and reachable for it, free of links.

    `fresh` says that the passwords of this home are new: what a removed home of the same path left elsewhere can't be
    opened any more and is removed.
    """
    if not home.servers.exists():
        home.servers.unlink(missing_ok=True)  # a link that leads nowhere
        if account.may("-x", home.path):
            home.servers.mkdir(mode=0o711)
        else:
            home.servers.symlink_to(_elsewhere(home, fresh))
    base = home.servers.resolve()
    return account.make_folder(base / name)


def _elsewhere(home: Home, fresh: bool) -> Path:
    folder = ACCOUNT_HOME / hashlib.sha256(str(home.path).encode()).hexdigest()[:12]
    ACCOUNT_HOME.mkdir(parents=True, exist_ok=True)
    ACCOUNT_HOME.chmod(0o755)
    if fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o711, exist_ok=True)
    folder.chmod(0o711)
    (folder / "home").write_bytes(os.fsencode(home.path) + b"\n")  # whose it is, should that be removed by hand
    return folder
