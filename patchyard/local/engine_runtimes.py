"""The OCI runtimes that a private engine knows beside its own runc: those that are on this machine.

Where cgroup version 1 has version 2 beside it, crun refuses to work. It gets a view of the mounts without that one: its
own, for each call, since what an engine mounts has to be seen by all of its parts.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BESIDE = Path("/sys/fs/cgroup/unified")
_OPTIONS = {"crun": (), "runsc": ("--platform=ptrace", "--network=none")}


def engine_runtimes(folder: Path) -> dict[str, Any]:
    """The setting `runtimes` of an engine in `folder`, where a script may be put; see dockerd(8)."""
    found: dict[str, Any] = {}
    for name, options in _OPTIONS.items():
        program = shutil.which(name, path=_PATH)
        if program is None:
            continue
        if name == "crun" and (_BESIDE / "cgroup.procs").exists():
            program = str(_without_the_other(folder / "crun", program))
        found[name] = {"path": program, **({"runtimeArgs": list(options)} if options else {})}
    return found


def _without_the_other(script: Path, program: str) -> Path:
    inner = f'umount {_BESIDE} && exec {shlex.quote(program)} "$@"'
    script.write_text(f'#!/bin/sh\nexec unshare --mount -- sh -c {shlex.quote(inner)} crun "$@"\n')
    script.chmod(0o755)
    return script
