"""Who the servers run as.

PostgreSQL refuses to run as root, and no server should. As root we use a system account of our own, `patchyard`, and
make it when it is missing; as anybody else the servers run as that user. initdb needs a passwd entry, so a bare
unused uid would not do.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.errors import Unfit

ACCOUNT = "patchyard"
ACCOUNT_HOME = Path("/var/lib/patchyard")


@dataclass(frozen=True)
class Account:
    """The user that servers run as. `switch` is true when that is not ourselves."""

    name: str
    uid: int
    gid: int
    switch: bool

    def popen_options(self) -> dict[str, Any]:
        """What `subprocess` needs to start a program as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def may(self, test: str, path: Path) -> bool:
        """Whether this account passes `test` (a flag of test(1): -r, -w, -x) on `path`.

        The kernel is asked, as that account, so that folders above, ACLs and mounts count too.
        """
        command = ["test", test, str(path)]
        return subprocess.run(command, cwd="/", check=False, **self.popen_options()).returncode == 0

    def make_folder(self, folder: Path, mode: int = 0o700) -> Path:
        """Create `folder`, owned by this account; its parents must exist."""
        folder.mkdir(mode=mode, exist_ok=True)
        if self.switch:
            os.chown(folder, self.uid, self.gid)
        folder.chmod(mode)
        return folder

    def write_file(self, path: Path, text: str) -> Path:
        """Write `text` to `path` with mode 0600, readable by this account only, in one rename."""
        beside = path.with_name(path.name + ".new")
        beside.unlink(missing_ok=True)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            if self.switch:
                os.fchown(file.fileno(), self.uid, self.gid)
            file.write(text)
        return beside.replace(path)

    def run(self, argv: Sequence[str], *, env: dict[str, str], timeout_seconds: float) -> str:
        """Run `argv` as this account and return its output; `Unfit` with the last line of its stderr if it fails."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            argv,
            env=env,
            cwd="/",
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            stdin=subprocess.DEVNULL,
            **self.popen_options(),
        )
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise Unfit(f"{Path(argv[0]).name} failed with status {done.returncode}: {last}")
        return done.stdout


def _nothing(_line: str) -> None:
    return


def server_account(say: Callable[[str], None] = _nothing) -> Account:
    """The account for servers; `say` gets one line when a system account had to be made.

    Raises `Unfit` when we are a uid that has no passwd entry, or when the account cannot be made.
    """
    uid = os.geteuid()
    if uid != 0:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            raise Unfit(
                f"user id {uid} has no entry in /etc/passwd, which PostgreSQL's initdb needs",
                remedy="run as a user that has one, or set PATCHYARD_DATABASE_URL and PATCHYARD_BROKER_URL",
            ) from None
        return Account(name, uid, os.getegid(), switch=False)
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        say(f"making the system account {ACCOUNT}, which the database and the broker run as")
        _make_account()
        entry = pwd.getpwnam(ACCOUNT)
    return Account(ACCOUNT, entry.pw_uid, entry.pw_gid, switch=True)


def _make_account() -> None:
    command = ["useradd", "--system", "--no-create-home", "--home-dir", str(ACCOUNT_HOME)]
    command += ["--shell", "/usr/sbin/nologin", "--comment", "patchyard's servers"]
    try:
        grp.getgrnam(ACCOUNT)
        command += ["--gid", ACCOUNT]
    except KeyError:
        command += ["--user-group"]
    remedy = "make it by hand, or set PATCHYARD_DATABASE_URL and PATCHYARD_BROKER_URL"
    try:
        done = subprocess.run([*command, ACCOUNT], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise Unfit(f"no useradd to make the system account {ACCOUNT} with", remedy=remedy) from None
    # 9: the name exists; somebody else made it between our look and our call.
    if done.returncode not in (0, 9):
        raise Unfit(f"useradd {ACCOUNT} failed: {' '.join(done.stderr.split())}", remedy=remedy)
