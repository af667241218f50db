"""Which new files of a workspace are by-products and no part of the next tree.

Left out are the caches that running Python and its test runners leaves behind (`CACHE_FOLDERS`, `*.pyc`), and what
the `.gitignore` at the top of the *base* tree names: the base's, so that a command cannot hide files by writing one.
Paths that the base tree holds are never asked about: as in git, what is tracked is not ignored. Nested `.gitignore`
files have no say.

The `.gitignore` is untrusted, and its globs become regular expressions: lines whose match could take more than
quadratic time are dropped, and all matching together has a time budget.
"""

from __future__ import annotations

import re
import time

import pathspec

from runners.workspace.errors import RefusedWorkspace
from runners.workspace.store import Store

CACHE_FOLDERS = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
CACHE_SUFFIXES = (".pyc", ".pyo")
_MAX_FILE_BYTES = 64 * 1024
_MAX_LINES = 1_000
_BUDGET_SECONDS = 10.0


class IgnoreRules:
    """The by-products of one base tree."""

    def __init__(self, gitignore: bytes = b"") -> None:
        lines = gitignore[:_MAX_FILE_BYTES].decode("utf-8", "replace").splitlines()[:_MAX_LINES]
        self._spec = pathspec.GitIgnoreSpec.from_lines(line for line in lines if _is_usable(line))
        self._folders: dict[str, bool] = {"": False}
        self._spent_seconds = 0.0

    @classmethod
    def of_tree(cls, store: Store, tree: str) -> IgnoreRules:
        entry = store.entry(tree, ".gitignore")
        if entry is None or entry.kind != "file" or store.blob_size(entry.id) > _MAX_FILE_BYTES:
            return cls()
        return cls(store.blob(entry.id))

    def ignores(self, path: str) -> bool:
        """Whether the file `path`, which the base does not hold, is left out. Raises `RefusedWorkspace`."""
        folder, _, name = path.rpartition("/")
        return name.endswith(CACHE_SUFFIXES) or self.ignores_folder(folder) or self._matches(path)

    def ignores_folder(self, folder: str) -> bool:
        """Whether everything below `folder` is left out. Raises `RefusedWorkspace`."""
        known = self._folders.get(folder)
        if known is None:
            parent, _, name = folder.rpartition("/")
            known = name in CACHE_FOLDERS or self.ignores_folder(parent) or self._matches(folder + "/")
            self._folders[folder] = known
        return known

    def _matches(self, path: str) -> bool:
        if not self._spec.patterns:
            return False
        started = time.thread_time()
        matched = bool(self._spec.match_file(path.replace("\n", "\x01")))
        self._spent_seconds += time.thread_time() - started
        if self._spent_seconds > _BUDGET_SECONDS:
            raise RefusedWorkspace("slow_ignore", ".gitignore")
        return matched


def _is_usable(line: str) -> bool:
    """Whether the glob is valid, and its match at most quadratic in a component's length."""
    names = line.split("/")
    if len(line) > 500 or sum(name == "**" for name in names) > 2:
        return False
    if any(name.replace("**", "*").count("*") > 2 for name in names):
        return False
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True
