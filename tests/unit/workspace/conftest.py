"""A real bare repository for a test, and one for a whole module where hypothesis makes many trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.workspace.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store.git")


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.create(tmp_path_factory.mktemp("shared") / "store.git")
