"""Every test here runs on every backend of this machine: each promise of a sandbox is a promise of all of them.

`kind` says which; a runtime that is not installed, or that needs root where we are not, shows as skipped.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from docker import APIClient

from images.oci_layout import Layout
from runners.sandbox.backend import Backend
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.kinds import KINDS, OWN_KERNEL, WHOLE, connect
from tests.sandbox.networked import both, bounded, listen, made_up_names, mirror, networked, tls_mirror

__all__ = ["both", "bounded", "listen", "made_up_names", "mirror", "networked", "tls_mirror"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The backend, and its runtime."""
    backend, _, runtime = str(request.param).partition("-")
    if backend == "oci" and os.geteuid() != 0:
        pytest.skip("the oci backend needs root")
    if runtime and shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    if backend == "docker" and runtime and runtime not in _runtimes(request.getfixturevalue("engine_host")):
        pytest.skip(f"the engine does not know {runtime}")
    return str(request.param)


def _runtimes(host: str) -> set[str]:
    client = APIClient(base_url=host)
    try:
        return set(client.info()["Runtimes"])
    finally:
        client.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_runtime: runs on every kind of sandbox, also without the whole matrix")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the whole matrix runs, and what is said of a network where there is none to be had."""
    matrix = bool(os.environ.get("PATCHYARD_TEST_MATRIX"))
    extra = [item for item in items if _has_no_network(item) or (not matrix and _is_of_the_matrix_only(item))]
    if extra:
        config.hook.pytest_deselected(items=extra)
        items[:] = [item for item in items if item not in extra]


def _kind_of(item: pytest.Item) -> object:
    return item.callspec.params.get("kind") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None


def _has_no_network(item: pytest.Item) -> bool:
    return _kind_of(item) in OWN_KERNEL and bool(
        {"networked", "networked_workers"} & {*getattr(item, "fixturenames", ())}
    )


def _is_of_the_matrix_only(item: pytest.Item) -> bool:
    kind = _kind_of(item)
    return kind in KINDS and kind not in WHOLE and item.get_closest_marker("every_runtime") is None


@pytest.fixture(scope="session")
def own_kernel(kind: str) -> bool:
    """Whether a sandbox of this kind sees gVisor's kernel. What differs there is stated by the tests: it keeps whatever
    runs in it from this machine's kernel, and lets it do more to itself."""
    return kind in OWN_KERNEL


@pytest.fixture(scope="session")
def where(kind: str, request: pytest.FixtureRequest) -> str:
    """Where a backend of this kind has its sandboxes: an engine's address, or a PATCHYARD_HOME."""
    return str(request.getfixturevalue("engine_host" if kind.startswith("docker") else "oci_home"))


@pytest.fixture(scope="session")
def sandbox_image(kind: str, where: str, sandbox_layout: Layout) -> str:
    """The manifest digest of sandbox-python, which the backend has."""
    backend = connect(kind, where, registry=MemoryRegistry("none"))
    if not backend.has_image(sandbox_layout.manifest_digest):
        backend.load_image(sandbox_layout.folder)
    backend.close()
    return sandbox_layout.manifest_digest


@pytest.fixture
def make_backend(kind: str, where: str, sandbox_image: str) -> Iterator[Callable[..., Backend]]:
    """Makes backends of one owner of its own; after the test none of its sandboxes may be left."""
    owner = f"test-{os.getpid()}-{next(_numbers)}"
    made: list[Backend] = []

    def make(**options: Any) -> Backend:
        backend = connect(kind, where, **({"registry": MemoryRegistry(owner), "owner": owner} | options))
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.close()
    last = make()
    left = last.find()
    for found in left:
        last.destroy(found)
    last.close()
    assert not left, f"sandboxes are left: {left}"


@pytest.fixture
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """A backend of this kind."""
    return make_backend()
