"""Whoever dies, the worker, the sandbox or the engine: what is left is found, and its death is proved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import APIClient

from images.oci_layout import Layout
from patchyard.local.engine import PrivateEngine, private_engine
from runners.sandbox.backend import EngineUnavailable, FoundSandbox, ImageUnavailable, SandboxLost
from runners.sandbox.docker import DockerBackend
from runners.sandbox.reap import leftovers, prove_death, reap
from tests.fixtures.engine import MemoryRegistry, running_engine
from tests.sandbox.inside import STEP, sh

pytestmark = pytest.mark.engine

WORKER = """
import sys
from runners.sandbox.docker import DockerBackend
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import spec_of, tar_of
host, owner, image, seconds, fence = sys.argv[1:]
backend = DockerBackend(host, MemoryRegistry(owner), owner=owner)
print('ready', flush=True)
backend.run(spec_of(image, 'sleep', '60', deadline_seconds=float(seconds), fence=int(fence)), tar_of())
"""


@pytest.fixture(scope="session")
def kind() -> str:
    """These deaths are those of an engine's containers."""
    return "docker"


class Workers:
    """Workers in processes of their own, which can be killed, with a backend that sees what they left."""

    def __init__(self, host: str, image: str, make_backend: Callable[..., DockerBackend]) -> None:
        self.owner = f"death-{os.getpid()}-{time.monotonic_ns()}"
        self.backend = make_backend(owner=self.owner)
        self._host, self._image = host, image

    def start(self, seconds: float = 60, fence: int = 1, **environment: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, self._host, self.owner, self._image, str(seconds), str(fence)]
        worker = subprocess.Popen(argv, env=os.environ | environment, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.stdout.close()
        return worker

    def crashed_at(self, point: str, **options: float) -> None:
        worker = self.start(**options, PATCHYARD_CRASH_POINTS="1", PATCHYARD_CRASH=point)  # type: ignore[arg-type]
        assert worker.wait(30) == -signal.SIGKILL

    def killed_at_work(self, seconds: float = 60) -> None:
        """A worker that was killed when its command was running."""
        worker = self.start(seconds=seconds)
        client = APIClient(base_url=self._host)
        while not any("sleep 60" in " ".join(row) for row in self._processes(client)):
            time.sleep(0.02)
        client.close()
        worker.kill()
        worker.wait()

    def _processes(self, client: APIClient) -> list[list[str]]:
        running = [one for one in self.backend.find() if one.state == "running"]
        return [row for one in running for row in client.top(one.key)["Processes"]]

    def left(self, state: str, timeout_seconds: float = 10) -> list[FoundSandbox]:
        """What is left, once it is in that state."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = self.backend.find()
            if found and all(one.state == state for one in found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


@pytest.fixture
def workers(engine_host: str, sandbox_image: str, make_backend: Callable[..., DockerBackend]) -> Iterator[Workers]:
    made = Workers(engine_host, sandbox_image, make_backend)
    yield made
    reap(made.backend, set())


def test_a_worker_killed_before_creation_leaves_nothing(workers: Workers) -> None:
    workers.crashed_at("sandbox.after_register")
    assert workers.backend.find() == []


# A sandbox whose worker dies before the files are sent ends by itself: its input ends, and is no tar.
@pytest.mark.parametrize(
    ("point", "state"),
    [("sandbox.after_create", "created"), ("sandbox.after_start", "exited"), ("sandbox.after_exit", "exited")],
)
def test_what_a_killed_worker_leaves_is_found_and_proved_dead(workers: Workers, point: str, state: str) -> None:
    workers.crashed_at(point, seconds=1)
    (found,) = workers.left(state)
    assert (found.job_id, found.step_id, found.fence) == (70, STEP, 1)
    (proof,) = prove_death(workers.backend, STEP)
    assert (proof.found, proof.killed, proof.gone) == (state, False, True)
    assert workers.backend.find() == []
    assert prove_death(workers.backend, STEP) == []


def test_a_command_that_runs_on_is_killed_and_proved_dead(workers: Workers) -> None:
    workers.killed_at_work()
    (proof,) = prove_death(workers.backend, STEP)
    assert (proof.found, proof.killed, proof.gone) == ("running", True, True)
    assert proof.seen == {"inspected": "not found", "process": "not found"}


def test_a_command_that_nobody_watches_any_more_ends_at_its_deadline(workers: Workers) -> None:
    workers.killed_at_work(seconds=3)
    workers.left("running")
    workers.left("exited")
    assert [proof.gone for proof in reap(workers.backend, set())] == [True]


def test_a_live_lease_keeps_its_sandbox_and_an_older_fence_loses_its_own(workers: Workers) -> None:
    workers.crashed_at("sandbox.after_start", fence=1)
    workers.crashed_at("sandbox.after_start", fence=2)
    assert [one.fence for one in leftovers(workers.backend, {(STEP, 2)})] == [1]
    assert leftovers(workers.backend, {(STEP, 1), (STEP, 2)}) == []
    assert len(prove_death(workers.backend, STEP, below_fence=2)) == 1
    assert [one.fence for one in workers.backend.find(step_id=STEP)] == [2]
    assert workers.backend.find(step_id=STEP + 1) == []


def test_another_ledgers_sandboxes_are_not_touched(
    workers: Workers, make_backend: Callable[..., DockerBackend]
) -> None:
    workers.crashed_at("sandbox.after_start")
    assert reap(make_backend(owner="somebody-else"), set()) == []
    assert workers.left("exited")


def test_a_sandbox_that_somebody_else_ends_is_lost_and_not_failed(
    make_backend: Callable[..., DockerBackend], sandbox_image: str
) -> None:
    backend = make_backend()
    lost: list[BaseException] = []

    def run() -> None:
        try:
            sh(backend, sandbox_image, "sleep 60", deadline_seconds=60)
        except SandboxLost as error:
            lost.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while [one.state for one in backend.find()] != ["running"]:
        time.sleep(0.05)
    prove_death(backend, STEP)
    thread.join(20)
    assert len(lost) == 1


def test_an_image_that_is_not_there_is_said_so(backend: DockerBackend) -> None:
    missing = "sha256:" + "0" * 64
    assert not backend.has_image(missing)
    with pytest.raises(ImageUnavailable, match=missing):
        sh(backend, missing, "true")


def test_an_engine_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    nowhere = DockerBackend(f"unix://{tmp_path}/none.sock", MemoryRegistry("none"))
    with pytest.raises(EngineUnavailable, match=r"none\.sock does not answer"):
        sh(nowhere, "sha256:" + "0" * 64, "true")


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
