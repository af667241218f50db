"""Mirrors: where a worker has the base of a job, and where a submission learns what the base is.

One bare repository for each source under `HOME/mirrors`, shared by all processes of the host. A source without history
(archive, package, folder) gives the same commit id on every host. What a source says in an error reaches the user
without credentials. See `places` for what is guaranteed of a mirror on disk. Mirrors and downloads only save time: any
that nobody uses may be evicted, and is fetched again when it is needed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ledger.errors import DiskFull
from ledger.records.base import sha256_hex
from ledger.records.source import ResolvedBase, SourceRef
from runners.disk import NO_FLOOR, Floor, full_disk_told, require_room, says_full
from runners.eviction import Item
from runners.workspace.archive import ARCHIVE_LIMITS, tree_of_archive
from runners.workspace.collect import Collector
from runners.workspace.download import Downloads, Web, check_digest, file_sha256
from runners.workspace.errors import (
    CommitMissing,
    PackRefused,
    RefusedWorkspace,
    RepositoryMissing,
    RepoUnavailable,
    SourceRefused,
)
from runners.workspace.folder import folder_members, gitignore_of
from runners.workspace.git_remote import Git, GitFailed
from runners.workspace.git_source import FULL_ID, fetch_all, fetch_commit, find_commit, rev_parse
from runners.workspace.location import URL, redacted
from runners.workspace.pack import add_pack, pack_of_commit
from runners.workspace.places import Fill, Places
from runners.workspace.pypi import PackageIndex
from runners.workspace.snapshot import commit_snapshot
from runners.workspace.store import Store
from runners.workspace.survey import survey_tree
from runners.workspace.tarball import DEFAULT_LIMITS, TreeLimits


@dataclass(frozen=True)
class SourceLimits:
    """How much a source may cost: seconds of one git command, bytes of one file it writes, what a tree may hold, and
    what has to be left free on the disk before one is fetched."""

    git_seconds: float = 900.0
    git_file_bytes: int = 4 * 1024 * 1024 * 1024
    lock_seconds: float = 900.0
    archive: TreeLimits = ARCHIVE_LIMITS
    tree: TreeLimits = DEFAULT_LIMITS
    floor: Floor = NO_FLOOR


DEFAULT_SOURCE_LIMITS = SourceLimits()


@dataclass(frozen=True)
class Resolution:
    """A source as it stood at submission.

    `pack` is set for folders only: the bytes behind `source.pack_sha256`, to be put into the ledger's objects.
    """

    source: SourceRef
    base: ResolvedBase
    pack: bytes | None = None


class Mirrors:
    """The mirrors under one home folder. Safe to share among threads; other processes may use the same home."""

    def __init__(
        self, home: Path, *, limits: SourceLimits = DEFAULT_SOURCE_LIMITS, index: PackageIndex | None = None
    ) -> None:
        """`home` is made if need be; `index` is where packages are looked for: pip's own when None."""
        self._home, self._limits = home.absolute(), limits
        folder = self._home / "mirrors"
        folder.mkdir(parents=True, exist_ok=True)
        self._places = Places(folder, lock_seconds=limits.lock_seconds)
        self._git = Git(folder, timeout_seconds=limits.git_seconds, max_bytes=limits.git_file_bytes)
        self._downloads = Downloads(self._home / "downloads")
        self._index = index or PackageIndex(self._downloads)
        self._resolved: dict[tuple[SourceRef, str], Resolution] = {}
        self._resolving = threading.Lock()

    # -- submission ----------------------------------------------------------------------------------------------------

    def resolve(self, source: SourceRef, base: str | None = None) -> Resolution:
        """What `base` (a commit, branch or tag; HEAD when None) of `source` is now, and is when asked again.

        Raises `BadInput`: `RepositoryMissing`, `CommitMissing`, `WrongDigest`, `SourceRefused`.
        """
        name = base or "HEAD"
        with self._resolving:
            known = self._resolved.get((source, name))
            if known is None:
                with self._disk():
                    known = self._resolved[source, name] = self._resolve(source, name)
            return known

    def _resolve(self, source: SourceRef, name: str) -> Resolution:
        where = redacted(source.location)
        pack = None
        try:
            if source.kind == "git":
                store, commit = self._resolve_git(source, name)
            elif source.kind == "folder":
                source, store, commit, pack = self._resolve_folder(source)
            else:
                store, commit = self._filled(source, self._archive_filler(source))
        except RepoUnavailable as error:
            remedy = "check the address and your access; no password is ever asked for"
            raise RepositoryMissing(f"cannot be read: {error.message}", where=where, remedy=remedy) from error
        if source.kind != "git" and name not in ("HEAD", commit):
            raise CommitMissing(f"has no commits, so no {name}", where=where, remedy="leave the base out")
        tree = store.tree_of_commit(commit)
        remarks = survey_tree(store, tree, self._limits.tree, where=where)
        return Resolution(source, ResolvedBase(commit=commit, tree=tree, remarks=remarks), pack)

    def _resolve_git(self, source: SourceRef, name: str) -> tuple[Store, str]:
        commit = find_commit(self._git, source.location, name)
        if FULL_ID.match(commit):
            store = self._places.at_hand(place_of(source), commit)
            if store is not None:
                return store, commit
            return self._filled(source, self._git_filler(source, commit), commit)

        def fill(git_dir: Path) -> str:
            fetch_all(self._git, source.location, git_dir)
            return rev_parse(self._git, git_dir, source.location, commit)

        return self._filled(source, fill)

    def _resolve_folder(self, source: SourceRef) -> tuple[SourceRef, Store, str, bytes]:
        folder = Path(source.location)
        if not folder.is_dir():
            raise RepositoryMissing("no such folder", where=source.location, remedy="correct the path")
        require_room([self._home / "mirrors"], self._limits.floor)
        with self._places.draft() as draft:
            store = Store.create(draft)
            collector = Collector(store, self._limits.tree)
            try:
                collector.take(folder_members(folder, self._limits.tree, gitignore_of(folder), self._home))
                commit = commit_snapshot(store, store.write_tree(collector.entries))
                pack = pack_of_commit(store, commit)
            except (RefusedWorkspace, PackRefused) as error:
                remedy = "make it smaller, or a git repository"
                raise SourceRefused(error.message, where=source.location, remedy=remedy) from error
            resolved = source.model_copy(update={"pack_sha256": sha256_hex(pack)})
            return resolved, self._places.adopt(draft, place_of(resolved), commit), commit, pack

    # -- work ----------------------------------------------------------------------------------------------------------

    def open(self, source: SourceRef, commit: str, fetch_object: Callable[[str], bytes]) -> Store:
        """The mirror of `source` with `commit` in it, as `resolve` gave them; `fetch_object` gives a pack by sha256.

        It may be evicted unless the caller holds `in_use`. Raises `RepoUnavailable`, `DiskFull` (try again later),
        `CommitMissing`, `WrongDigest`, `SourceRefused` (permanent).
        """
        if source.kind == "git":
            fill = self._git_filler(source, commit)
        elif source.kind == "folder":
            fill = _folder_filler(source, commit, fetch_object)
        else:
            fill = self._archive_filler(source)
        with self._disk():
            return self._ready(source, commit, fill)

    def in_use(self, source: SourceRef) -> AbstractContextManager[None]:
        """While this is held, the mirror of `source` is not evicted. Raises `RepoUnavailable`."""
        return self._places.in_use(place_of(source))

    def discard(self, source: SourceRef) -> None:
        """Throw the mirror away, after `ObjectUnreadable`; the next `open` builds it anew."""
        self._places.discard(place_of(source))

    def _ready(self, source: SourceRef, commit: str, fill: Fill) -> Store:
        place = place_of(source)
        store = self._places.at_hand(place, commit)
        if store is not None:
            return store
        store, brought = self._filled(source, fill, commit)
        if brought != commit:
            where = redacted(source.location)
            raise CommitMissing(f"gives commit {brought} now, not {commit}", where=where, remedy="submit the job again")
        return store

    # -- room ----------------------------------------------------------------------------------------------------------

    def items(self) -> Iterator[Item]:
        """The mirrors and downloads that are kept here, each of which can be had again."""
        for place, size, used_at in self._places.stored():
            yield Item("mirror", place, size, used_at, partial(self._places.evict, place))
        for sha256, size, used_at in self._downloads.stored():
            yield Item("download", sha256, size, used_at, partial(self._drop_download, sha256))

    def _drop_download(self, sha256: str) -> bool:
        """Unless the mirror is being built that it is for."""
        return self._places.alone(_place_of_archive(sha256), partial(self._downloads.drop, sha256))

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """What wants room on the disk in the block and finds none is `DiskFull`."""
        try:
            with full_disk_told(self._home / "mirrors"):
                yield
        except GitFailed as failed:
            if not says_full(failed.said):
                raise
            raise DiskFull(f"{self._home / 'mirrors'}: {failed.said}") from failed

    def _filled(self, source: SourceRef, fill: Fill, commit: str | None = None) -> tuple[Store, str]:
        require_room([self._home / "mirrors", self._home / "downloads"], self._limits.floor)
        return self._places.filled(place_of(source), fill, commit)

    # -- what fills a mirror -------------------------------------------------------------------------------------------

    def _git_filler(self, source: SourceRef, commit: str) -> Fill:
        def fill(git_dir: Path) -> str:
            fetch_commit(self._git, source.location, commit, git_dir)
            return rev_parse(self._git, git_dir, source.location, commit)

        return fill

    def _archive_filler(self, source: SourceRef) -> Fill:
        def fill(git_dir: Path) -> str:
            store = Store(git_dir)
            try:
                return commit_snapshot(store, tree_of_archive(store, self._archive_file(source), self._limits.archive))
            except RefusedWorkspace as error:
                where, remedy = redacted(source.location), "make an archive without it"
                raise SourceRefused(f"cannot be taken: {error.message}", where=where, remedy=remedy) from error

        return fill

    def _archive_file(self, source: SourceRef) -> Path:
        where, sha256 = redacted(source.location), source.sha256 or ""
        if source.kind == "pypi":
            name, _, version = source.location.partition("==")
            return self._index.sdist(name, version, sha256)
        if URL.match(source.location):
            return self._downloads.get(sha256, lambda path: Web().save(source.location, path), where=where)
        path = Path(source.location)
        try:
            check_digest(file_sha256(path), sha256, where=where)
        except OSError as error:
            raise RepoUnavailable(f"{where} cannot be read ({error.strerror})", retry_after_seconds=5.0) from error
        return path


def _folder_filler(source: SourceRef, commit: str, fetch_object: Callable[[str], bytes]) -> Fill:
    def fill(git_dir: Path) -> str:
        digest = source.pack_sha256 or ""
        pack = fetch_object(digest)
        check_digest(sha256_hex(pack), digest, where=source.location)
        add_pack(Store(git_dir), pack, root=commit)
        return commit

    return fill


def place_of(source: SourceRef) -> str:
    """The name of the mirror's folder: by content where the source is bytes, by address where it is a repository."""
    if source.kind == "git":
        identity = f"git {source.location}"
    elif source.kind == "folder":
        identity = f"folder {source.pack_sha256}"
    else:
        return _place_of_archive(source.sha256 or "")
    return _place(identity)


def _place_of_archive(sha256: str) -> str:
    return _place(f"archive {sha256}")


def _place(identity: str) -> str:
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
