"""Whether this machine is fit for the work: one finding a subject, each with its remedy. Nothing is changed.

`missing` means that jobs cannot run here, `note` that something is slower, weaker or only needed later.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from images.rootfs import check_can_build
from ledger.errors import BadInput, DiskFull, PatchyardError, Unfit
from patchyard.backends import (
    OCI_ADDRESS,
    ImagesOnly,
    choose_backend,
    connect,
    has_engine,
    passing_home,
)
from patchyard.image_shelf import engine_at_hand, images_in, layout_of, layouts_of, locked_images
from patchyard.local.account import ACCOUNT, server_account
from patchyard.local.engine import answers, find_engine, private_engine
from patchyard.local.home import Home
from patchyard.local.programs import POSTGRES_WHEEL, VALKEY_WHEEL, wheel_version
from patchyard.local.reach import require_broker, require_database
from patchyard.room import lacking_here
from patchyard.settings import Settings, masked_url
from runners.disk import shown_bytes
from runners.eviction import size_bytes
from runners.sandbox.escapes import package_here, warnings

State = Literal["ok", "note", "missing"]
SANDBOX_IMAGE = "sandbox-python"
_PYTHON = (3, 11)
_GIT = (2, 30)
_DISK_WANTED_BYTES = 10_000_000_000
_MEMORY_NEEDED_BYTES = 1_000_000_000
_MEMORY_WANTED_BYTES = 4_000_000_000
_WHEELS_REMEDY = "install patchyard's requirements again, or set PATCHYARD_DATABASE_URL and PATCHYARD_BROKER_URL"


@dataclass(frozen=True)
class Finding:
    """What was found on one subject; `remedy` is empty where all is well."""

    subject: str
    state: State
    found: str
    remedy: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)


def examine(settings: Settings) -> list[Finding]:
    """All findings about this machine and these settings."""
    return [
        _python(),
        _git(),
        _system(),
        _user(),
        _disk(settings),
        *_kept(settings),
        _memory(),
        *_sandboxes(settings),
        known_escapes(settings),
        _cgroups(),
        _seccomp(),
        *_servers(settings),
        _image(settings),
        _builder(),
    ]


def is_fit(findings: list[Finding]) -> bool:
    """Whether jobs can run here."""
    return all(finding.state != "missing" for finding in findings)


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _PYTHON:
        return Finding("python", "missing", found, "install Python 3.11 or newer and make the environment again")
    return Finding("python", "ok", found)


def _git() -> Finding:
    remedy = "apt-get install git"
    try:
        words = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return Finding("git", "missing", "not found", remedy)
    version = tuple(int(part) for part in words[2].split(".")[:2])
    return Finding("git", "ok", words[2]) if version >= _GIT else Finding("git", "missing", words[2], remedy)


def _system() -> Finding:
    found = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors"
    if platform.system() != "Linux":
        return Finding("system", "missing", found, "use Linux, or a virtual machine with it")
    return Finding("system", "ok", found)


def _user() -> Finding:
    if os.geteuid() != 0:
        try:
            account = server_account()
        except Unfit as error:
            return Finding("user", "missing", error.what, error.remedy)
        return Finding("user", "ok", f"{account.name}; an engine of our own could be started by root only")
    return Finding("user", "ok", f"root; the database and the broker run as the system account {ACCOUNT}")


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _disk(settings: Settings) -> Finding:
    folder = _existing(settings.home)
    if not os.access(folder, os.W_OK):
        return Finding("disk", "missing", f"{folder} is not writable", "set PATCHYARD_HOME to a folder of yours")
    if lines := lacking_here(settings):
        return Finding("disk", "missing", f"{DiskFull.code}: {'; '.join(lines)}", DiskFull.make_room)
    free_bytes = shutil.disk_usage(folder).free
    found = f"{free_bytes / 1e9:.1f} GB free in {folder}"
    return Finding("disk", *_amount(free_bytes, 0, _DISK_WANTED_BYTES, found, DiskFull.make_room))


def _kept(settings: Settings) -> Iterator[Finding]:
    """How much of the disk is taken by what is kept to save time."""
    mirrors = size_bytes(settings.home / "mirrors") + size_bytes(settings.home / "downloads")
    images = sum(size for _, _, size in layouts_of(settings).stored()) + size_bytes(settings.home / "oci" / "images")
    for subject, amount, most_gb in (
        ("mirrors", mirrors, settings.mirrors_max_gb),
        ("images kept", images, settings.images_max_gb),
    ):
        found = f"{shown_bytes(amount)} of at most {most_gb:g} GB"
        if amount <= most_gb * 1e9:
            yield Finding(subject, "ok", found)
        else:
            yield Finding(subject, "note", found, "workers evict what is not in use; `patchyard images prune`")


def _memory() -> Finding:
    available_bytes = psutil.virtual_memory().available
    found = f"{available_bytes / 1e9:.1f} GB available"
    remedy = "use fewer PATCHYARD_SANDBOX_SLOTS, or a larger machine"
    return Finding("memory", *_amount(available_bytes, _MEMORY_NEEDED_BYTES, _MEMORY_WANTED_BYTES, found, remedy))


def _amount(have: int, needed: int, wanted: int, found: str, remedy: str) -> tuple[State, str, str]:
    if have >= wanted:
        return "ok", found, ""
    return ("note" if have >= needed else "missing"), found, remedy


def _sandboxes(settings: Settings) -> Iterator[Finding]:
    """The backend that would be taken, tried in a folder that is gone afterwards, and its engine if it needs one."""
    try:
        with passing_home() as home:
            chosen = choose_backend(settings, home=home)
    except (Unfit, BadInput) as unfit:
        yield Finding("sandboxes", "missing", unfit.what, unfit.remedy)
        return
    yield Finding("sandboxes", "ok", f"{chosen.backend}: {chosen.why}")
    for tried in chosen.tried:
        yield Finding(f"tried {tried.name}", "note", tried.error.what, tried.error.remedy)
    if chosen.backend == "docker":
        yield _engine(settings)


def _engine(settings: Settings) -> Finding:
    try:
        private = Home(settings.home.resolve()).engine
        if settings.docker_host is not None:
            find_engine({"PATCHYARD_DOCKER_HOST": settings.docker_host})
            return Finding("engine", "ok", settings.docker_host)
        if (private / "run").is_dir() and answers(host := private_engine(private).host):
            return Finding("engine", "ok", f"{host} (our own)")
        if host_found := find_engine({}):
            return Finding("engine", "ok", host_found)
        program = private_engine(private).argv[0]
        return Finding("engine", "ok", f"none runs; `patchyard up` starts one of our own with {program}")
    except Unfit as error:
        return Finding("engine", "missing", error.what, error.remedy)


def known_escapes(settings: Settings) -> Finding:
    """Whether the versions of what runs sandboxes here have known holes; nothing is started to find out."""
    subject, remedy = "known escapes", "take the distribution's security updates, or a newer version"
    try:
        address = engine_at_hand(settings)
        if address is None:
            return Finding(subject, "note", "no engine answers whose version could be looked at", "patchyard up")
        if not has_engine(address):
            return Finding(subject, "ok", "no sandbox was made here yet")
        backend = connect(address, ImagesOnly(), settings.sandbox_runtime)
        try:
            versions = backend.versions()
        finally:
            backend.close()
    except PatchyardError as error:
        return Finding(subject, "note", error.message)
    here = package_here if address.startswith(("unix://", OCI_ADDRESS)) else None
    known = ", ".join(f"{name} {version or 'unknown'}" for name, version in versions.items())
    if lines := list(warnings(versions, here)):
        return Finding(subject, "note", f"{known}: {'; '.join(lines)}", remedy)
    return Finding(subject, "ok", f"{known}: none that is known")


def _cgroups() -> Finding:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return Finding("cgroups", "ok", "version 2")
    if (root / "memory").is_dir() and (root / "pids").is_dir():
        hybrid = " (hybrid)" if (root / "unified").is_dir() else ""
        return Finding("cgroups", "ok", f"version 1{hybrid}")
    return Finding("cgroups", "missing", "no memory and pids controllers", "boot with cgroups enabled")


def _seccomp() -> Finding:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if actions.exists():
        return Finding("seccomp", "ok", actions.read_text().strip())
    return Finding("seccomp", "missing", "the kernel has none", "use a kernel with CONFIG_SECCOMP_FILTER")


def _servers(settings: Settings) -> Iterator[Finding]:
    yield _server("database", settings.database_url, require_database, POSTGRES_WHEEL)
    yield _server("broker", settings.broker_url, require_broker, VALKEY_WHEEL)


def _server(subject: str, url: str | None, require: Callable[[str], None], wheel: str) -> Finding:
    if url is None:
        if version := wheel_version(wheel):
            return Finding(subject, "ok", f"embedded ({wheel} {version})")
        return Finding(subject, "missing", f"the wheel {wheel} is not installed", _WHEELS_REMEDY)
    try:
        require(url)
    except Unfit as error:
        return Finding(subject, "missing", error.what, error.remedy)
    return Finding(subject, "ok", masked_url(url))


def _image(settings: Settings) -> Finding:
    remedy = f"patchyard images build {SANDBOX_IMAGE}"
    try:
        entry = locked_images(settings).get(SANDBOX_IMAGE)
        if entry is None:
            return Finding("image", "note", f"{SANDBOX_IMAGE} has no digest here", remedy)
        host = engine_at_hand(settings)
        loaded = bool(host and images_in(host, [entry.digest]))
    except PatchyardError as error:
        return Finding("image", "note", error.message, remedy)
    found = f"{SANDBOX_IMAGE} {entry.digest[:19]}… of {entry.built}"
    if loaded:
        return Finding("image", "ok", f"{found}, in the engine")
    if layout_of(settings, entry.digest) is not None:
        return Finding("image", "ok", f"{found}, built here; `patchyard run` loads it into the engine")
    return Finding("image", "note", f"{found}, neither in the engine nor built here", remedy)


def _builder() -> Finding:
    try:
        return Finding("image builder", "ok", check_can_build())
    except Unfit as error:
        return Finding("image builder", "note", error.what, error.remedy)
