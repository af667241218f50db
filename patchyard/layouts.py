"""The images that were built or imported here: a folder of OCI layouts, from which every backend is stocked.

A layout is whole or not there. Who reads one holds its use; one that nobody reads can be evicted at any time. When each
image was used last is written down here for all backends, since engines do not know it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from images.oci_layout import read_layout
from ledger.errors import BadInput
from runners.eviction import delete, mark_used, set_aside, size_bytes, sweep
from runners.filelock import Busy, hold

DRAFT = ".importing-"
_BUILDING = ".building-*"
_ABANDONED_SECONDS = 6 * 3600.0
_USE_SECONDS = 60.0


@dataclass(frozen=True)
class Layouts:
    """The layouts in `folder`, each in NAME-DIGEST, with the first 16 digits of its digest."""

    folder: Path

    def find(self, digest: str) -> Path | None:
        """The folder of this image's layout, if it is here. Raises BadInput for one that is damaged."""
        for found in self.folder.glob(f"*-{digest.removeprefix('sha256:')[:16]}"):
            if read_layout(found).manifest_digest == digest:
                return found
        return None

    @contextmanager
    def in_use(self, digest: str) -> Iterator[Path | None]:
        """As `find`; while this is held, the layout is not evicted."""
        if not self.folder.is_dir():
            yield None
            return
        with hold(self._use(digest), shared=True, timeout_seconds=_USE_SECONDS):
            yield self.find(digest)

    def stored(self) -> Iterator[tuple[str, Path, int]]:
        """Digest, folder and size in bytes of each layout that is not damaged."""
        for path in sorted(self.folder.glob("*/index.json")):
            if not path.parent.name.startswith("."):
                with suppress(BadInput):
                    yield read_layout(path.parent).manifest_digest, path.parent, size_bytes(path.parent)

    def drop(self, digest: str) -> bool:
        """Throw a layout away unless somebody reads it; whether it is gone."""
        use = self._use(digest)
        try:
            with hold(use):
                while (layout := self.find(digest)) is not None:
                    if (aside := set_aside(layout, self.folder)) is not None:
                        delete(aside)
                use.unlink()
        except Busy:
            return False
        return True

    def mark(self, digest: str) -> None:
        """Note that this image is used now, here or in a backend."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._use(digest).touch()
        mark_used(self._use(digest))

    def used_at(self, digest: str) -> float:
        """When it was used last, in seconds since the epoch; 0 if never."""
        with suppress(OSError):
            return self._use(digest).stat().st_mtime
        return 0.0

    def sweep(self) -> None:
        """Delete what killed builders, importers and evictors have left."""
        sweep(self.folder, DRAFT)
        for left in self.folder.glob(_BUILDING):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                    delete(left)

    def _use(self, digest: str) -> Path:
        return self.folder / f".{digest.removeprefix('sha256:')[:64]}.use"
