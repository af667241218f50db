"""A real bare repository per test, and a short way to a tree in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runners.workspace.store import EMPTY_TREE, FILE, Change, Store

TreeOf = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "mirror.git")


@pytest.fixture
def tree_of(store: Store) -> TreeOf:
    """The tree that holds the given files: text, bytes, or a Change with a mode of its own."""

    def make(files: dict[str, str | bytes | Change]) -> str:
        changes = {}
        for path, content in files.items():
            if isinstance(content, Change):
                changes[path] = content
            else:
                changes[path] = Change(FILE, content.encode() if isinstance(content, str) else content)
        return store.with_changes(EMPTY_TREE, changes)

    return make
