"""SWE-bench's `test_patch`: applied once, at submission, to become acceptance files.

The verifier lays files over a tree; it applies no patch of a stranger to a tree that an agent has changed. So git
applies the patch to the base's index in a throw-away bare repository that borrows the mirror's objects, and the files
that came out different are packed. Nothing is checked out and the mirror is not written to.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ledger.errors import BadInput
from runners.workspace.diff import changed_paths
from runners.workspace.git_remote import Git, GitFailed
from runners.workspace.paths import encode_path
from runners.workspace.store import EXECUTABLE, SUBMODULE, SYMLINK, Store
from runners.workspace.tarball import END, file_member, symlink_member

_TIMEOUT_SECONDS = 60.0
_MAX_BYTES = 256 * 1024 * 1024


def patched_files(mirror: Path, tree: str, patch: str) -> bytes:
    """The files of `tree`, whose objects are in the bare repository `mirror`, that `patch` changes or adds, as a tar.

    What the patch deletes is left out: laying files over a tree takes none away. Raises BadInput if the patch does not
    apply or changes nothing.
    """
    with tempfile.TemporaryDirectory(prefix="patchyard-patch-") as name:
        folder = Path(name)
        store = Store.create(folder / "git")
        (store.path / "objects" / "info").mkdir(exist_ok=True)
        (store.path / "objects" / "info" / "alternates").write_bytes(os.fsencode(mirror.absolute() / "objects") + b"\n")
        patched = _apply(Git(folder, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BYTES), store.path, tree, patch)
        return _packed(Store(store.path), tree, patched)


def _apply(git: Git, repository: Path, tree: str, patch: str) -> str:
    """The id of `tree` with the patch applied."""
    file = repository.parent / "test.patch"
    text = patch if patch.endswith("\n") else patch + "\n"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    git.run("read-tree", tree, git_dir=repository)
    try:
        git.run("apply", "--cached", "--whitespace=nowarn", str(file), git_dir=repository)
    except GitFailed as failed:
        said = failed.said.replace(str(file), "test_patch")
        raise BadInput(
            f"test_patch does not apply to the base: {said}", remedy="correct base_commit or the patch"
        ) from None
    return git.run("write-tree", git_dir=repository).strip()


def _packed(store: Store, base: str, patched: str) -> bytes:
    members: list[bytes] = []
    for change in changed_paths(store, base, patched):
        if change.kind == "deleted" or change.new_mode == SUBMODULE:
            continue
        path, data = encode_path(change.path), store.blob(change.new_id)
        if change.new_mode == SYMLINK:
            members.append(symlink_member(path, data))
        else:
            members.extend(file_member(path, data, executable=change.new_mode == EXECUTABLE))
    if not members:
        raise BadInput("test_patch changes no file", remedy="write a patch that adds or changes tests")
    return b"".join(members) + END
