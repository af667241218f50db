"""Where this backend keeps things, and what is written on them.

Everything lies in one folder, which only root may enter: images, a folder for each sandbox, and the runtimes' own
state. A sandbox's folder bears its labels in its very name, so that it is never there without them, and whoever looks
for sandboxes reads names only. The same folder's mark names the cgroup that all of its sandboxes are in.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import BadInput
from runners.sandbox.backend import SandboxBroken
from runners.sandbox.spec import SandboxPlace

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OWNER = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_SEPARATOR = "+"


@dataclass(frozen=True)
class Labels:
    """Whose a sandbox is, as `FoundSandbox` has it. `owner` names the ledger."""

    owner: str
    job_id: int
    step_id: int
    fence: int
    name: str

    @property
    def key(self) -> str:
        """The name of its folder."""
        return _SEPARATOR.join((self.owner, str(self.job_id), str(self.step_id), str(self.fence), self.name))

    @classmethod
    def of(cls, spec: SandboxPlace, owner: str, name: str) -> Labels:
        """Raises SandboxBroken for a name that no runtime would take."""
        if not _NAME.fullmatch(name):
            raise SandboxBroken(f"a sandbox cannot be called {name!r}")
        return cls(owner, spec.job_id, spec.step_id, spec.fence, name)

    @classmethod
    def read(cls, key: str) -> Labels | None:
        """Of the name of a folder; None when it is no sandbox's."""
        parts = key.split(_SEPARATOR)
        if len(parts) != 5 or not all(part.isdigit() for part in parts[1:4]) or not _NAME.fullmatch(parts[4]):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]), int(parts[3]), parts[4])


def check_owner(owner: str) -> str:
    """The owner. Raises BadInput for one that cannot be part of a file's name."""
    if not _OWNER.fullmatch(owner):
        raise BadInput("an owner has at most 64 letters, digits, dots, dashes and underscores", where=owner)
    return owner


@dataclass(frozen=True)
class Places:
    """The folder of this backend in PATCHYARD_HOME. `folder` is absolute and free of links."""

    folder: Path

    @classmethod
    def of(cls, home: Path) -> Places:
        """The place in PATCHYARD_HOME; nothing is made."""
        return cls(home.resolve() / "oci")

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def sandboxes(self) -> Path:
        return self.folder / "sandboxes"

    @property
    def states(self) -> Path:
        """What the runtimes remember of their containers, a folder each."""
        return self.folder / "state"

    @property
    def scratch(self) -> Path:
        """An empty folder, for the process that starts runtimes to mount something on that only it sees."""
        return self.folder / "scratch"

    @property
    def users(self) -> Path:
        """A file that is held by everybody who may start sandboxes here."""
        return self.folder / "users"

    @property
    def cgroup(self) -> str:
        """The name of the cgroup that holds every sandbox's."""
        return f"patchyard-oci-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:10]}"

    def sandbox(self, labels: Labels) -> Path:
        """The folder of one sandbox: its bundle, the runtime's log, and the first process's id once it was started."""
        return self.sandboxes / labels.key

    def prepare(self) -> None:
        """Make the folders. Raises BadInput when that cannot be done here."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.images, self.sandboxes, self.states, self.scratch):
                folder.mkdir(mode=0o700, exist_ok=True)
            owner = self.folder.stat()
        except OSError as refused:
            raise BadInput(str(refused.strerror), where=str(self.folder), remedy="set PATCHYARD_HOME") from refused
        if owner.st_uid != os.geteuid() or owner.st_mode & 0o077:
            raise BadInput(
                "others may enter this folder, which holds the root file systems of sandboxes",
                where=str(self.folder),
                remedy=f"chown root and chmod 700 {self.folder}",
            )

    def all(self) -> Iterator[Labels]:
        """The labels of every sandbox that has a folder."""
        try:
            names = os.listdir(self.sandboxes)
        except FileNotFoundError:
            return
        for name in sorted(names):
            if (labels := Labels.read(name)) is not None:
                yield labels
