"""The OCI runtimes of this machine: which there are, what each wants to be told, and which is taken.

The order of preference is measured: crun is written in C and starts a container in less than half of runc's time.
gVisor's runsc is slower and holds a second kernel between a sandbox and this machine's; it is taken when asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ledger.errors import BadInput, Unfit
from ledger.records.base import Record

PREFERRED = ("crun", "runc")
WHERE = "PATCHYARD_SANDBOX_RUNTIME"
REMEDY = "as root: apt-get install crun, or runc"
_OPTIONS: dict[str, tuple[str, ...]] = {
    # Without /dev/kvm; its own network stack would have nothing to talk to.
    "runsc": ("--platform=ptrace", "--network=none"),
}
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Runtime(Record):
    """A runtime's program, and the options that it needs before any command."""

    name: str
    path: str
    version: str
    options: tuple[str, ...] = ()

    @property
    def sealable(self) -> tuple[str, ...]:
        """The programs that had better be started from a sealed copy. runc makes do without copying itself."""
        return (self.path,) if self.name.startswith("crun") else ()

    @property
    def kind(self) -> str:
        """crun, runc or runsc, whatever its program is called."""
        return kind_of(self.name)

    @property
    def wants_all_cgroups(self) -> bool:
        """Whether it fails where a hierarchy of version 1 is not mounted that it could do without."""
        return not self.is_transparent

    @property
    def is_transparent(self) -> bool:
        """Whether a container's processes are processes of this machine's own kernel."""
        return any(known in self.name for known in PREFERRED)

    def start(self, states: Path, bundle: Path, name: str) -> list[str]:
        """The command that starts the container `name` and ends as soon as it runs."""
        return [
            self.path, *self.options, "--root", str(states / self.name), "--log", str(bundle / "log"),
            "run", "--detach", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), name,
        ]  # fmt: skip


def installed() -> list[str]:
    """The preferred runtimes that this machine has, the fastest first."""
    return [name for name in PREFERRED if _program(name) is not None]


def find_runtime(wanted: str | None) -> Runtime:
    """The runtime of this name or path, or the fastest that is here.

    Raises BadInput for one that is asked for and not here, Unfit when there is none at all.
    """
    if wanted is None:
        if not (names := installed()):
            raise Unfit(f"no OCI runtime ({' or '.join(PREFERRED)}) is here", remedy=REMEDY)
        wanted = names[0]
    path = _program(wanted)
    if path is None:
        raise BadInput(
            f"no such program ({wanted})", where=WHERE, remedy="give the name or path of crun, runc or runsc"
        )
    name = os.path.basename(wanted)
    return Runtime(name=name, path=path, version=version_of(path), options=_OPTIONS.get(kind_of(name), ()))


def kind_of(name: str) -> str:
    """Which of the runtimes that we know bears this name."""
    return next((known for known in ("crun", "runc", *_OPTIONS) if known in name), name)


def has_own_kernel(name: str) -> bool:
    """Whether what a runtime of this name starts sees another kernel than this machine's."""
    return kind_of(name) in _OPTIONS


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_FOLDERS}")


def version_of(path: str) -> str:
    """The first line of what it says, without its name. Raises Unfit when it does not run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError) as broken:
        raise Unfit(f"{path} does not run ({broken})", remedy=REMEDY) from broken
    words = said.splitlines()[0].split() if said.strip() else []
    return words[-1] if words else ""
