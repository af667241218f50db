"""Versions of engines and runtimes with known ways out of a container, as far as sandboxes like ours could meet them.

A short table of facts, each with its CVE and the first version of every branch that has the fix, from the projects' own
release notes. It can only warn: a distribution fixes a hole without taking the new version, so what its package says
of the fix counts too; and what is not in the table is not thereby safe. Holes in commands that are never used here
(copying into a container, building images, checkpoints, plug-ins) are left out.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROGRAMS = {"docker": "dockerd"}
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DOC = Path("/usr/share/doc")
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-~]?(?:rc|beta|alpha)[.-]?(\d+))?")
_FINAL = 1_000_000
_DPKG_SECONDS = 30


@dataclass(frozen=True)
class Escape:
    """A way out that programs of some versions have: `fixed` has the first good version of each branch."""

    program: str
    cve: str
    what: str
    fixed: tuple[str, ...]
    since: str = "0.0"


KNOWN = (
    Escape("runc", "CVE-2019-5736", "a container overwrites the runtime's own program", ("1.0.0-rc7",)),
    Escape("runc", "CVE-2021-30465", "a mount is redirected by exchanging links", ("1.0.0-rc95",)),
    Escape("runc", "CVE-2024-21626", "a forgotten descriptor leads into the machine's files", ("1.1.12",)),
    Escape("runc", "CVE-2024-45310", "empty files are made on the machine", ("1.1.14", "1.2.0-rc3")),
    Escape("runc", "CVE-2025-31133", "masked paths become writable", ("1.2.8", "1.3.3", "1.4.0-rc3")),
    Escape("runc", "CVE-2025-52565", "the console's mount leads to kernel files", ("1.2.8", "1.3.3", "1.4.0-rc3")),
    Escape("runc", "CVE-2025-52881", "writes to kernel files are redirected", ("1.2.8", "1.3.3", "1.4.0-rc3")),
    Escape("crun", "CVE-2019-18837", "an image's links lead out of its root", ("0.10.5",)),
    Escape("crun", "CVE-2022-27650", "capabilities that were not asked for can be inherited", ("1.4.4",)),
    Escape("crun", "CVE-2025-24965", "an image's link leads out of its root, with the krun handler", ("1.20",)),
    Escape("containerd", "CVE-2020-15257", "a shim's socket is reached from the host's network", ("1.3.9", "1.4.3")),
    Escape(
        "containerd", "CVE-2022-23648", "an image's volume shows the machine's files", ("1.4.13", "1.5.10", "1.6.1")
    ),
    Escape("containerd", "CVE-2025-47290", "unpacking an image changes the machine's files", ("2.1.1",), "2.1.0"),
    Escape("docker", "CVE-2021-41091", "unprivileged users of the machine reach containers' files", ("20.10.9",)),
)


@dataclass(frozen=True)
class Package:
    """The distribution's package of a program, and the CVEs that its changelog names; None where it has none here."""

    name: str
    version: str
    named: frozenset[str] | None


def known_escapes(program: str, version: str) -> list[Escape]:
    """The known ways out of this version, by its number alone; none for a version that cannot be read."""
    have = _read(version)
    if have is None:
        return []
    return [one for one in KNOWN if one.program == program and _is_affected(have, one)]


def warnings(versions: Mapping[str, str], package_of: Callable[[str], Package | None] | None = None) -> Iterator[str]:
    """One line for each known way out that these programs may have, and for a version that cannot be read.

    `package_of` gives the distribution's package of a program; None where the programs are not on this machine.
    """
    for program, version in versions.items():
        package = package_of(program) if package_of is not None else None
        if package is not None and not _is_of(package, version):
            package = None  # what runs is not what the package brought
        if _read(version) is None:
            yield f"{program}: its version ({version or 'unknown'}) cannot be compared with those that have known holes"
        for one in known_escapes(program, version):
            fixed = " or ".join(one.fixed)
            hole = f"{program} {version}: {one.cve} by its version, {one.what}; fixed in {fixed}"
            if package is None:
                yield f"{hole}. A distribution's package may have the fix under an older number"
            elif package.named is None:
                yield f"{hole}. Package {package.name} {package.version} may have the fix; its changelog is not here"
            elif one.cve not in package.named:
                yield f"{hole}. Package {package.name} {package.version} does not name the fix in its changelog"


@cache
def package_here(program: str) -> Package | None:
    """The package that a program on this machine came with; None where it is not of a package."""
    path = shutil.which(_PROGRAMS.get(program, program), path=_FOLDERS)
    if path is None:
        return None
    try:
        owner = subprocess.run(
            ["dpkg-query", "--search", str(Path(path).resolve())],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout.partition(":")[0]
        version = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${Version}", owner],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return Package(owner, version, _named_in_changelog(_DOC / owner))


def _asked(*arguments: str) -> str:
    return subprocess.run(
        ["dpkg-query", *arguments], capture_output=True, text=True, check=True, timeout=_DPKG_SECONDS
    ).stdout


def _named_in_changelog(folder: Path) -> frozenset[str] | None:
    try:
        with gzip.open(folder / "changelog.Debian.gz", "rt", errors="replace") as changelog:
            return frozenset(re.findall(r"CVE-\d{4}-\d+", changelog.read()))
    except OSError:
        return None


def _is_of(package: Package, version: str) -> bool:
    ours, its = _read(version), _read(package.version.partition(":")[2] or package.version)
    return ours is not None and its is not None and ours[:3] == its[:3]


_Number = tuple[int, int, int, int]


def _read(version: str) -> _Number | None:
    """A version to be compared. A candidate comes before its release; what follows the number is left out."""
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), int(candidate) if candidate else _FINAL


def _is_affected(have: _Number, one: Escape) -> bool:
    """Below the fix of its own branch; a branch without one is good if it is newer than all that have."""
    fixes = [fix for fix in map(_read, one.fixed) if fix is not None]
    since = _read(one.since)
    if since is not None and have < since:
        return False
    own = next((fix for fix in fixes if fix[:2] == have[:2]), None)
    return have < (own or max(fixes))
