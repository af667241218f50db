"""Members of an archive become the entries of a tree, or are refused with the reason and the path.

What a sandbox, a stranger's archive or a user's folder may not put into a tree is decided here, once: see the codes
of `RefusedWorkspace`. Blobs are written as they come, so that memory holds one file at a time; the tree is written by
the caller, when everything was found good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

from runners.workspace.errors import InvalidPath, RefusedWorkspace
from runners.workspace.paths import check_path
from runners.workspace.store import EXECUTABLE, FILE, SYMLINK, Store
from runners.workspace.tarball import Member, TreeLimits, clean_path

_MAX_HOPS = 40
_MAX_STEPS = 200
_MAX_TARGET_BYTES = 4095


def _keep_all(_path: str) -> bool:
    return True


class Collector:
    """Takes members one by one; `entries` is (mode, blob id) by path."""

    def __init__(
        self,
        store: Store,
        limits: TreeLimits,
        *,
        keep: Callable[[str], bool] = _keep_all,
        known: Collection[bytes] = (),
        duplicates: Literal["refuse", "last"] = "refuse",
    ) -> None:
        """`keep` tells what becomes part of the tree, `known` are ids of blobs that need not be written."""
        self._store, self._limits, self._keep, self._known = store, limits, keep, known
        self._duplicates = duplicates
        self.entries: dict[str, tuple[int, str]] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.left_out: set[str] = set()

    def take(self, members: Iterable[Member]) -> None:
        """Take all members. Raises `RefusedWorkspace`."""
        for member in members:
            self._take(member)
        self._check_conflicts()

    def _take(self, member: Member) -> None:
        path = member.path
        try:
            check_path(path, link=member.kind == "symlink")
        except InvalidPath as error:
            raise RefusedWorkspace(error.code, path) from error
        if path in self.folders or path in self.entries or path in self.left_out:
            if self._duplicates == "refuse" or (path in self.folders) != (member.kind == "folder"):
                raise RefusedWorkspace("duplicate_name", path)
            self.links.pop(path, None)
        if member.kind == "folder":
            self.folders.add(path)
        elif not self._keep(path):
            self.left_out.add(path)
        elif member.kind == "file":
            mode = EXECUTABLE if member.executable else FILE
            self.entries[path] = (mode, self._store.add_blob(member.data, self._known))
        elif member.kind == "symlink":
            self._take_link(path, member.target)
        else:
            self._take_hard_link(path, clean_path(member.target))

    def _take_link(self, path: str, target: str) -> None:
        raw = target.encode("utf-8", "surrogateescape")
        if not raw or len(raw) > _MAX_TARGET_BYTES or b"\0" in raw:
            raise RefusedWorkspace("bad_link", path)
        if len(self.links) >= self._limits.max_links:
            raise RefusedWorkspace("too_many_links", path)
        self.links[path] = target
        self.entries[path] = (SYMLINK, self._store.add_blob(raw, self._known))

    def _take_hard_link(self, path: str, target: str) -> None:
        """A hard link within becomes a copy; its target stands earlier in the same archive or it points out."""
        if target not in self.entries:
            raise RefusedWorkspace("hard_link_out", path)
        self.entries[path] = self.entries[target]
        if target in self.links:
            self.links[path] = self.links[target]

    def _check_conflicts(self) -> None:
        parents: set[str] = set()
        for path in (*self.entries, *self.folders):
            while (cut := path.rfind("/")) > 0:
                path = path[:cut]
                if path in parents:
                    break
                if path in self.entries:
                    raise RefusedWorkspace("name_conflict", path)
                parents.add(path)


def check_links(links: Mapping[str, str], allowed: Callable[[str], bool] = lambda _path: False) -> None:
    """Raise `RefusedWorkspace` (`link_out`) for the first link that leads out and is not `allowed` to."""
    for path in links:
        if leads_out(links, path) and not allowed(path):
            raise RefusedWorkspace("link_out", path)


def leads_out(links: Mapping[str, str], path: str) -> bool:
    """Whether following the link `path`, through the other links too, leaves the root of the tree.

    Followed component by component as a kernel does, since `a/../..` is not what it looks like when `a` is a link.
    A loop leads nowhere, so not out; a chain too tangled to follow counts as leading out.
    """
    here = path.split("/")[:-1]
    ahead = links[path].split("/")[::-1]
    if links[path].startswith("/"):
        return True
    hops = steps = 0
    while ahead:
        name = ahead.pop()
        steps += 1
        if steps > _MAX_STEPS:
            return True
        if name in ("", "."):
            continue
        if name == "..":
            if not here:
                return True
            here.pop()
            continue
        here.append(name)
        target = links.get("/".join(here))
        if target is None:
            continue
        hops += 1
        if target.startswith("/"):
            return True
        if hops > _MAX_HOPS:
            return False
        here.pop()
        ahead.extend(target.split("/")[::-1])
    return False
