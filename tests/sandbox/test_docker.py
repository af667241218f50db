"""What only a Docker engine can do to a sandbox: go away, be killed, be stopped, and bring a hostile image."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import APIClient

from images.oci_layout import Layout
from patchyard.local.engine import PrivateEngine, private_engine
from runners.sandbox.backend import EngineUnavailable, SandboxLost
from runners.sandbox.docker import DockerBackend
from runners.sandbox.docker.connection import Connections
from runners.sandbox.reap import prove_death
from tests.fixtures.engine import MemoryRegistry, running_engine
from tests.sandbox.inside import STEP, sh

pytestmark = pytest.mark.engine
on_docker = pytest.mark.parametrize("kind", ["docker"], indirect=True, scope="session")


def test_an_engine_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    nowhere = DockerBackend(f"unix://{tmp_path}/none.sock", MemoryRegistry("none"))
    with pytest.raises(EngineUnavailable, match=r"none\.sock does not answer"):
        sh(nowhere, "sha256:" + "0" * 64, "true")


def test_an_engine_that_goes_away_between_two_looks_leaves_no_socket_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "require_listener", lambda self: None)
    nowhere = DockerBackend(f"unix://{tmp_path}/none.sock", MemoryRegistry("none"))
    with pytest.raises(EngineUnavailable, match=r"none\.sock does not answer"):
        sh(nowhere, "sha256:" + "0" * 64, "true")
    gc.collect()  # a socket that was left open is a warning now, and that fails a test


@pytest.fixture(scope="module")
def own_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    """An engine that a test may kill, in a folder whose path is too long for sockets."""
    engine = private_engine(tmp_path_factory.mktemp("an-engine-with-a-name-that-is-rather-long"))
    assert len(engine.host) < 100
    yield engine
    engine.remove()


def test_an_engine_killed_in_the_middle_of_a_command(own_engine: PrivateEngine, sandbox_layout: Layout) -> None:
    registry = MemoryRegistry("killed")
    backend = DockerBackend(own_engine.host, registry)
    with running_engine(own_engine) as process:
        assert backend.load_image(sandbox_layout.folder) == sandbox_layout.config_digest
        assert backend.has_image(sandbox_layout.manifest_digest)
        threading.Timer(2.0, process.kill).start()
        with pytest.raises(EngineUnavailable):
            sh(backend, sandbox_layout.manifest_digest, "sleep 60", deadline_seconds=60)
        assert [state for _, state in registry.marks] == ["registered", "created", "running"]
        process.wait()
    # `running_engine` has taken away what it left: its containerd, its shim, the container, mounts and cgroups.
    assert own_engine._remains() == []
    assert not own_engine.run.exists()
    with running_engine(own_engine):
        # The new engine still has the container in its books; it is dead, and that can be proved now.
        (proof,) = prove_death(backend, STEP)
        assert (proof.found, proof.killed, proof.gone) == ("exited", False, True)
        assert sh(backend, sandbox_layout.manifest_digest, "echo again").output == b"again\n"
    backend.close()


def test_a_stopped_engine_takes_its_sandboxes_along(own_engine: PrivateEngine, sandbox_layout: Layout) -> None:
    backend = DockerBackend(own_engine.host, MemoryRegistry("stopped"))
    with running_engine(own_engine) as process:
        if not backend.has_image(sandbox_layout.manifest_digest):
            backend.load_image(sandbox_layout.folder)
        threading.Timer(1.0, process.terminate).start()
        began = time.monotonic()
        with pytest.raises((EngineUnavailable, SandboxLost)):
            sh(backend, sandbox_layout.manifest_digest, "trap '' TERM; sleep 60", deadline_seconds=60)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 10
        assert [one for one in own_engine._remains() if not one.startswith("cgroup")] == []
    backend.close()


@pytest.fixture
def hostile_image(engine_host: str, sandbox_image: str, backend: DockerBackend) -> Iterator[str]:
    """The sandbox image with a configuration that tries all it can; its id in the engine."""
    client = APIClient(base_url=engine_host)
    container = client.create_container(_id_of(client, sandbox_image), ["true"])["Id"]
    changes = [
        "USER root", "WORKDIR /proc/self/fd/7", "ENV SECRET=1 PATH=/evil LD_DEBUG=all", "VOLUME /data",
        'ENTRYPOINT ["/bin/false"]', 'HEALTHCHECK --interval=1s CMD touch /tmp/healthy',
        "EXPOSE 80", "LABEL patchyard.localhost= patchyard.step=1",
    ]  # fmt: skip
    image = client.commit(container, changes=changes)["Id"]
    client.remove_container(container)
    yield image
    client.remove_image(image)
    client.close()


def _id_of(client: APIClient, digest: str) -> str:
    reference = f"patchyard/*:{digest.replace(':', '-')}"
    return str(client.images(filters={"reference": reference})[0]["Id"])


@on_docker
def test_nothing_that_an_image_declares_weakens_its_sandbox(
    backend: DockerBackend, hostile_image: str, engine_host: str
) -> None:
    client = APIClient(base_url=engine_host)
    volumes = client.volumes()["Volumes"]
    script = "id -u; pwd; env | sort; stat -f -c %T /data; head -c 1M /dev/zero > /data/x; sleep 1.5; ls /tmp; ip addr"
    result = sh(backend, hostile_image, f"{script}; getent hosts localhost; cat /etc/resolv.conf")
    lines = result.output.decode().splitlines()
    assert lines[:2] == ["65532", "/workspace"]
    assert "tmpfs" in lines
    assert "SECRET=1" not in lines
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in lines
    assert any("No space left" in line for line in lines)
    assert "healthy" not in lines
    # An image that does not know localhost gets the engine's hosts file, and still no resolver of the host.
    assert any(line.endswith("localhost ip6-localhost ip6-loopback") for line in lines)
    assert [line for line in lines if line.startswith("nameserver")] == ["nameserver 127.0.0.1"]
    assert client.volumes()["Volumes"] == volumes
    client.close()
