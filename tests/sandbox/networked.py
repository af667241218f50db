"""Sandboxes with a network for tests: what runs a program in one, and the world that it may reach.

The servers are on this machine's loopback, which `private` permits here; the names are made up (`tests.sandbox.names`).
The fixtures are those of every test below this folder (see conftest).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.sandbox.backend import Backend
from runners.sandbox.egress import outlet
from runners.sandbox.spec import NetworkGrant, SandboxResult
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import spec_of, tar_of
from tests.sandbox.outside import NAME, Listener, Mirror, certificate, swallow

ASKING = (Path(__file__).parent / "asking.py").read_bytes()
LOOPBACK = ("127.0.0.0/8", "::1/128")
MAIN = outlet.PROGRAM
NAMES = {
    NAME: [["127.0.0.1"]],
    f"files.{NAME}": [["127.0.0.1"]],
    "another.test": [["127.0.0.1"]],
    "inner.test": [["10.1.2.3"]],
    "mixed.test": [["127.0.0.1", "10.1.2.3"]],
    "mapped.test": [["::ffff:169.254.169.254"]],
    "neighbour.test": [["fe80::1%eth0"]],
    "rebinding.test": [["127.0.0.1"], ["169.254.169.254"]],
    "none.test": [[]],
}


class Networked:
    """Runs programs with a network, and remembers what was noted of their requests."""

    def __init__(self, make_backend: Callable[..., Backend], image: str) -> None:
        self.registry = MemoryRegistry(f"network-{os.getpid()}-{time.monotonic_ns()}")
        self.backend = make_backend(registry=self.registry)
        self.image = image

    def run(
        self,
        code: str,
        *allow: str,
        private: tuple[str, ...] = LOOPBACK,
        files: dict[str, bytes] | None = None,
        **fields: Any,
    ) -> SandboxResult:
        spec = spec_of(self.image, "python3", "-c", code, network=NetworkGrant(allow=allow, private=private), **fields)
        return self.backend.run(spec, tar_of({"asking.py": ASKING, **(files or {})}))

    def seen(self, code: str, *allow: str, **fields: Any) -> Any:
        """What the code leaves in `seen`."""
        whole = f"import json, sys; sys.path.insert(0, '.')\nfrom asking import *\n{code}\nprint(json.dumps(seen))"
        result = self.run(whole, *allow, **fields)
        assert result.exit_code == 0, result.output.decode()
        return json.loads(result.output.splitlines()[-1])

    def told(self) -> list[tuple[str, int, str]]:
        """What was noted: host, port and outcome."""
        return [(one.host, one.port, one.outcome) for one in self.registry.requests]


@pytest.fixture
def made_up_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names in NAMES are known, and no others."""
    names = f"from tests.sandbox.names import answer; answer({NAMES!r})"
    monkeypatch.setattr(outlet, "PROGRAM", f"{names}; {MAIN}")


@pytest.fixture
def networked(make_backend: Callable[..., Backend], sandbox_image: str, made_up_names: None) -> Networked:
    """On the kinds whose network is this machine's kernel's."""
    return Networked(make_backend, sandbox_image)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """Plain HTTP."""
    made = Mirror()
    yield made
    made.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_mirror(both: Path) -> Iterator[Mirror]:
    made = Mirror(both)
    yield made
    made.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    made: list[Listener] = []

    def start(serve: Callable[[socket.socket], None] = swallow) -> Listener:
        made.append(Listener(serve))
        return made[-1]

    yield start
    for listener in made:
        listener.close()


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets bounds for the processes that are started from now on."""

    def change(**bounds: float) -> None:
        monkeypatch.setattr(outlet, "BOUNDS", replace(outlet.BOUNDS, **bounds))

    return change


def served() -> list[psutil.Process]:
    """The processes of this one's, and of nobody else's, that serve a network."""
    return [one for one in psutil.Process().children(recursive=True) if MAIN in " ".join(command_line(one))]


def command_line(one: psutil.Process) -> list[str]:
    """Of a process; empty when it is gone."""
    try:
        return one.cmdline()
    except psutil.Error:
        return []
