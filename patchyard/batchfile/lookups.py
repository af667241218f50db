"""What a batch file's words stand for outside of it: repositories, images, folders and replays, each looked up once.

Ten thousand jobs may name one repository at one commit; a mistake in what they share is found once, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ledger.errors import BadInput, PatchyardError
from ledger.objects import MAX_OBJECT_BYTES
from ledger.records.base import sha256_hex
from ledger.records.source import SourceRef
from patchyard.batchfile.problems import quoted
from patchyard.batchfile.spool import Spool

Found = TypeVar("Found")


@dataclass(frozen=True)
class FoundBase:
    """A repository at a commit. `pack` holds a plain folder's snapshot, to be kept in the ledger's objects."""

    source: SourceRef
    commit: str
    tree: str
    remarks: tuple[str, ...] = ()
    pack: bytes | None = None


@dataclass(frozen=True)
class FoundImage:
    """An image by its digest, `sha256:…`, and the name that people know it by."""

    digest: str
    name: str


class WrongReplay(BadInput):
    """A replay is malformed; `where` is its own file and line."""


class Finder(Protocol):
    """What has to be looked up outside of the batch file. Each raises BadInput; its place is the caller's to say."""

    def base(self, repo: str, base: str, folder: Path) -> FoundBase:
        """The repository `repo` at `base`; relative paths start at `folder`."""

    def image(self, name: str) -> FoundImage:
        """The pinned image of that name."""

    def overlay(self, folder: Path) -> bytes:
        """The files below `folder` as a tar."""

    def patched_files(self, base: FoundBase, patch: str) -> bytes:
        """The files of the base that `patch` changes or adds, as they are after it, as a tar."""

    def check_replay(self, data: bytes, where: str) -> None:
        """Raises BadInput naming the line if this is no replay."""


class Lookups:
    """A finder with a memory, whose objects go to the spool. Every method raises BadInput, again for the same thing."""

    def __init__(self, finder: Finder, spool: Spool, folder: Path) -> None:
        """`folder` is the batch file's, where relative paths start."""
        self._finder, self._spool, self._folder = finder, spool, folder
        self._known: dict[tuple[object, ...], Any] = {}
        self.remarks: list[str] = []
        self.images: dict[str, FoundImage] = {}

    def base(self, repo: str, base: str) -> FoundBase:
        """The repository at the commit, without the pack, which is kept."""
        return self._once(("base", repo, base), lambda: self._find_base(repo, base))

    def image(self, name: str) -> FoundImage:
        """The pinned image of that name."""
        found = self._once(("image", name), lambda: self._finder.image(name))
        return self.images.setdefault(found.digest, found)

    def overlay(self, folder: Path) -> str:
        """The SHA-256 of the folder's files as a tar."""
        return self._once(("overlay", folder), lambda: self._keep("overlay", self._finder.overlay(folder)))

    def patched_files(self, base: FoundBase, patch: str) -> str:
        """The SHA-256 of what `patch` makes of the base's files as a tar."""
        key = ("patch", base.tree, sha256_hex(patch.encode("utf-8", "surrogatepass")))
        return self._once(key, lambda: self._keep("overlay", self._finder.patched_files(base, patch)))

    def replay(self, file: Path, shown: str) -> str:
        """The SHA-256 of a replay file."""
        return self._once(("replay", file), lambda: self._read_replay(file, shown))

    def _once(self, key: tuple[object, ...], look_up: Callable[[], Found]) -> Found:
        if key not in self._known:
            try:
                self._known[key] = look_up()
            except BadInput as problem:
                self._known[key] = problem
            except PatchyardError as error:
                self._known[key] = BadInput(error.message, remedy="correct it, or try again later")
        found = self._known[key]
        if isinstance(found, BadInput):
            raise found
        return found  # type: ignore[no-any-return]

    def _keep(self, kind: str, data: bytes) -> str:
        if len(data) > MAX_OBJECT_BYTES:
            what = f"{len(data)} bytes of {kind}, and {MAX_OBJECT_BYTES} are the limit"
            raise BadInput(what, remedy="make it smaller")
        return self._spool.put_object(kind, data)

    def _find_base(self, repo: str, base: str) -> FoundBase:
        found = self._finder.base(repo, base, self._folder)
        if found.pack is not None:
            self._keep("pack", found.pack)
        self.remarks += [f"{repo}: {remark}" for remark in found.remarks if f"{repo}: {remark}" not in self.remarks]
        return FoundBase(found.source, found.commit, found.tree)

    def _read_replay(self, file: Path, shown: str) -> str:
        try:
            data = file.read_bytes()
        except OSError as error:
            reason = (error.strerror or "it cannot be read").lower()
            what = f"replay {quoted(shown)}: {reason}"
            raise BadInput(what, remedy="write the replay, or correct its path") from None
        try:
            self._finder.check_replay(data, shown)
        except BadInput as problem:
            raise WrongReplay(problem.what, where=problem.where, remedy=problem.remedy) from None
        return self._keep("replay", data)
