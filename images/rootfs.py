"""The packages of a recipe, installed into a file system by mmdebstrap, as one tar file.

mmdebstrap unpacks and configures the packages in a chroot of its own; what comes out still carries traces of the
machine that built it (its name, its resolver, its mirrors), which `images.layer` takes away.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from pathlib import Path

from images.recipe import Recipe
from images.sources import Sources
from ledger.errors import Temporary, Unfit

EPOCH_SECONDS = 1_577_836_800
"""The time that every file of an image bears (2020-01-01). As SOURCE_DATE_EPOCH it also makes Python's byte code carry
a hash of its source instead of the source's time, see py_compile."""

MERGED_USR_HOOKS = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")


class PackagesUnavailable(Temporary):
    """The packages of an image could not be fetched or installed."""


def check_can_build() -> str:
    """The mmdebstrap mode that works here, `root` or `unshare`. Raises Unfit, with what to do, when none does."""
    if shutil.which("mmdebstrap") is None:
        raise Unfit("building an image needs mmdebstrap", remedy="run: apt-get install mmdebstrap")
    if os.geteuid() == 0:
        return "root"
    if shutil.which("newuidmap") and _has_subordinate_ids():
        return "unshare"
    raise Unfit(
        "building an image needs root, or subordinate user ids for mmdebstrap's unshare mode",
        remedy="run it as root, or: apt-get install uidmap, and give your user lines in /etc/subuid and /etc/subgid",
    )


def _has_subordinate_ids() -> bool:
    names = (f"{getpass.getuser()}:", f"{os.geteuid()}:")
    files = [Path("/etc/subuid"), Path("/etc/subgid")]
    return all(
        path.is_file() and any(line.startswith(names) for line in path.read_text().splitlines()) for path in files
    )


def install(recipe: Recipe, sources: Sources, tar: Path) -> None:
    """Install the recipe's packages and write the file system to `tar`.

    Raises Unfit when this machine cannot, PackagesUnavailable with apt's own words when the packages cannot be had.
    """
    command = ["mmdebstrap", f"--mode={check_can_build()}", "--variant=essential", "--format=tar"]
    if MERGED_USR_HOOKS.is_dir():
        command.append(f"--hook-dir={MERGED_USR_HOOKS}")
    command += [f"--aptopt={setting}" for setting in sources.settings]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.leave_out]
    command += [f"--include={','.join(recipe.packages)}", sources.codename, str(tar), "-"]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(EPOCH_SECONDS),
    } | {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name == "TMPDIR"}
    done = subprocess.run(
        command, input=sources.stanzas, env=environment, text=True, errors="replace", capture_output=True, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-3:]
        raise PackagesUnavailable(f"mmdebstrap could not build {recipe.name}: {' '.join(said)}", 30.0)
