"""What a batch file names, found on this machine: mirrors of repositories, the locks of images, folders, replays."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from images.lock import home_lock, read_locks
from ledger.errors import BadInput
from patchyard.batchfile.hidden_tests import patched_files
from patchyard.batchfile.lookups import FoundBase, FoundImage
from patchyard.batchfile.uncommitted import uncommitted
from policy.images import PinnedImage, pin_image
from runners.disk import NO_FLOOR, Floor
from runners.workspace.mirrors import SourceLimits
from runners.workspace.overlay import overlay_tar
from runners.workspace.source import Mirrors, parse_source
from scheduler.models.replay import parse_replay


class MachineFinder:
    """The Finder of a submission. Mirrors made on the way stay under `home`, for the workers of this machine."""

    def __init__(self, home: Path, images_lock: Path, floor: Floor = NO_FLOOR) -> None:
        """`floor` is what has to be free on the disk before a mirror is begun."""
        self._home, self._images_lock, self._floor = home, images_lock, floor

    @cached_property
    def _mirrors(self) -> Mirrors:
        return Mirrors(self._home, limits=SourceLimits(floor=self._floor))

    @cached_property
    def _locked(self) -> dict[str, PinnedImage]:
        entries = read_locks([home_lock(self._home), self._images_lock])
        return {
            name: PinnedImage(name=name, digest=entry.digest, config=entry.config) for name, entry in entries.items()
        }

    def base(self, repo: str, base: str, folder: Path) -> FoundBase:
        """The repository at the commit; relative paths start at `folder`."""
        found = self._mirrors.resolve(parse_source(repo, folder), base)
        remarks = (*found.base.remarks, *uncommitted(found.source, found.base.commit))
        return FoundBase(found.source, found.base.commit, found.base.tree, remarks, found.pack)

    def image(self, name: str) -> FoundImage:
        """The image that the locks, or a digest, pin."""
        found = pin_image(name, self._locked)
        return FoundImage(found.digest, found.name)

    def overlay(self, folder: Path) -> bytes:
        """The files below `folder` as a tar."""
        return overlay_tar(folder)

    def patched_files(self, base: FoundBase, patch: str) -> bytes:
        """The files that `patch` changes or adds, as they are after it, as a tar."""
        with self._mirrors.in_use(base.source):
            store = self._mirrors.open(base.source, base.commit, _no_object)
            return patched_files(store.path, base.tree, patch)

    def check_replay(self, data: bytes, where: str) -> None:
        """Raises BadInput naming the line if this is no replay."""
        parse_replay(data, where)


def _no_object(sha256: str) -> bytes:
    """A mirror that was just resolved is whole: nothing is fetched for it."""
    raise BadInput(f"the snapshot {sha256[:12]} of a folder vanished", remedy="submit again")
