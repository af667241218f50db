"""From one tree to another, for a sandbox that has the files of the first: what to take away, and a tar of the rest.

The result is the same as if the second tree had been unpacked into an empty workspace, times of folders included:
every folder with a change in it is in the tar too, whose times are those of every tar of ours. What has become another
kind of thing is taken away before, so that no link of the first tree is ever followed.
"""

from __future__ import annotations

from collections.abc import Iterator

from runners.workspace.store import SUBMODULE, Store
from runners.workspace.stream import entry_members, folder_members_of
from runners.workspace.tarball import END, folder_member
from runners.workspace.trees import RawEntry, canonical_mode


def changes_between(store: Store, base: str, tree: str) -> tuple[list[bytes], list[bytes]]:
    """The paths to take away first, whole folders among them, and the pieces of a tar. Raises `ObjectUnreadable`."""
    gone: list[bytes] = []
    pieces = list(_walk(store, b"", base, tree, gone)) if base != tree else []
    return gone, [*pieces, END] if pieces else []


def _walk(store: Store, path: bytes, base: str, tree: str, gone: list[bytes]) -> Iterator[bytes]:
    if path:
        yield folder_member(path)
    lead = path + b"/" if path else b""
    before = {entry.name: entry for entry in store.raw_tree(base)}
    after = {entry.name: entry for entry in store.raw_tree(tree)}
    gone += [lead + name for name, was in before.items() if not _stays(was, after.get(name))]
    for name, now in after.items():
        was = before.get(name)
        if was is not None and was.id == now.id and was.mode == now.mode:
            continue
        if was is not None and was.is_folder and now.is_folder:
            yield from _walk(store, lead + name, was.id.hex(), now.id.hex(), gone)
        elif now.is_folder:
            yield from folder_members_of(store, lead + name, now.id.hex())
        elif not (was is not None and _is_submodule(was) and _is_submodule(now)):
            yield from entry_members(store, lead + name, now)


def _stays(was: RawEntry, now: RawEntry | None) -> bool:
    """Whether what is there can be left in place: the same thing, or a folder that is still one."""
    if now is None:
        return False
    if was.is_folder or now.is_folder:
        return was.is_folder and now.is_folder
    return (was.id == now.id and was.mode == now.mode) or (_is_submodule(was) and _is_submodule(now))


def _is_submodule(entry: RawEntry) -> bool:
    return canonical_mode(entry.mode) == SUBMODULE
