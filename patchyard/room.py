"""How much has to be free on the disks of this PATCHYARD_HOME, and whether it is."""

from __future__ import annotations

from pathlib import Path

from patchyard.settings import Settings
from runners.disk import Floor, lacking, require_room

_GB = 1_000_000_000


def floor_of(settings: Settings) -> Floor:
    """What has to be free before anything is begun."""
    return Floor(round(settings.disk_min_free_gb * _GB), settings.disk_min_free_inodes)


def local_folders(settings: Settings) -> list[Path]:
    """Where the things of this PATCHYARD_HOME lie; each may be a link to another disk."""
    names = ("", "mirrors", "downloads", "images", "oci", "oci/images", "servers", "engine")
    return [settings.home / name for name in names]


def require_local_room(settings: Settings) -> None:
    """Raises `NoRoom` when a disk of this PATCHYARD_HOME is too full to begin anything."""
    require_room(local_folders(settings), floor_of(settings))


def lacking_here(settings: Settings) -> list[str]:
    """What is lacking on which disk of this PATCHYARD_HOME; empty when there is room to begin something."""
    return lacking(local_folders(settings), floor_of(settings))
