"""An engine that goes silent, is slow, or has an image that cannot serve: bounded in time, and told by one line."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from docker import APIClient

from images.oci_layout import ARCHITECTURES, engine_archive, this_architecture
from ledger.errors import DiskFull
from runners.sandbox.backend import EngineUnavailable, ImageUnavailable
from runners.sandbox.docker import DockerBackend, connection
from runners.sandbox.reap import prove_death
from tests.fixtures.engine import MemoryRegistry
from tests.fixtures.engine_proxy import EngineProxy
from tests.fixtures.layouts import entry, folder, small_layout
from tests.sandbox.inside import STEP, sh

pytestmark = pytest.mark.engine
on_docker = pytest.mark.parametrize("kind", ["docker"], indirect=True, scope="session")
CALL_SECONDS = 3


@pytest.fixture
def proxy(engine_host: str, tmp_path: Path) -> Iterator[EngineProxy]:
    made = EngineProxy(engine_host, tmp_path / "sick.sock")
    yield made
    made.close()


@pytest.fixture
def sick(
    proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch, make_backend: Callable[..., DockerBackend]
) -> Iterator[tuple[DockerBackend, MemoryRegistry]]:
    """A backend on the proxy, which is patient for a few seconds only."""
    monkeypatch.setattr(connection, "CALL_SECONDS", CALL_SECONDS)
    owner = make_backend()._owner
    registry = MemoryRegistry(owner)
    backend = DockerBackend(proxy.host, registry, owner=owner, grace_seconds=1.0)
    backend.facts()
    yield backend, registry
    proxy.go_on()
    backend.close()


@on_docker
@pytest.mark.parametrize(
    ("request_", "registered"),
    [
        ("/images/", False),
        ("/containers/create", True),
        ("/attach", True),
        ("/start", True),
        ("DELETE", True),
    ],
)
def test_an_engine_that_goes_silent_in_a_call_is_away_and_what_it_left_is_found(
    sick: tuple[DockerBackend, MemoryRegistry],
    proxy: EngineProxy,
    backend: DockerBackend,
    sandbox_image: str,
    request_: str,
    registered: bool,
) -> None:
    sick_backend, registry = sick
    proxy.stall_at(request_)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable):
        sh(sick_backend, sandbox_image, "true")
    assert proxy.stalled.is_set()
    assert time.monotonic() - began < 60
    assert bool(registry.marks) == registered
    assert "removed" not in {state for _, state in registry.marks}
    proxy.go_on()
    until = time.monotonic() + 60
    looks = 0  # with nothing left: what the engine is asked to create only now may take it a while
    while looks < (6 if request_ == "/containers/create" else 1):
        left = any(not proof.gone for proof in prove_death(backend, STEP)) or backend.find(step_id=STEP)
        looks = 0 if left else looks + 1
        assert time.monotonic() < until
        time.sleep(0.5)


@on_docker
def test_an_engine_that_goes_silent_in_the_middle_of_a_command_is_left_after_the_deadline(
    sick: tuple[DockerBackend, MemoryRegistry], proxy: EngineProxy, backend: DockerBackend, sandbox_image: str
) -> None:
    sick_backend, registry = sick
    threading.Timer(1.5, proxy.stall).start()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable):
        sh(sick_backend, sandbox_image, "sleep 60", deadline_seconds=3)
    assert time.monotonic() - began < 90
    assert [state for _, state in registry.marks] == ["registered", "created", "running"]
    proxy.go_on()
    assert all(proof.gone for proof in prove_death(backend, STEP))


@on_docker
def test_the_word_on_how_it_ended_is_not_waited_for_without_end(
    sick: tuple[DockerBackend, MemoryRegistry], proxy: EngineProxy, backend: DockerBackend, sandbox_image: str
) -> None:
    """The first process is killed from outside, so that only the engine could say what became of it."""
    sick_backend, _ = sick
    proxy.stall_at("/wait")

    def kill() -> None:
        until = time.monotonic() + 30
        while not (found := [one for one in backend.find(step_id=STEP) if one.state == "running"]):
            assert time.monotonic() < until
        time.sleep(1)
        with backend._connections.client() as client:
            client.kill(found[0].key)

    killer = threading.Thread(target=kill)
    killer.start()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable):
        sh(sick_backend, sandbox_image, "sleep 60", deadline_seconds=60)
    killer.join()
    assert proxy.stalled.is_set()
    assert time.monotonic() - began < 55
    proxy.go_on()
    prove_death(backend, STEP)


@on_docker
def test_a_slow_engine_is_only_slow(
    sick: tuple[DockerBackend, MemoryRegistry], proxy: EngineProxy, sandbox_image: str
) -> None:
    proxy.delay_seconds = 0.05
    result = sh(sick[0], sandbox_image, "cat a; echo; echo done", {"a": b"x" * 200_000}, deadline_seconds=60)
    assert (result.exit_code, result.output.endswith(b"done\n")) == (0, True)
    assert sick[1].marks[-1][1] == "removed"


# -- images that cannot serve ------------------------------------------------------------------------------------------


@pytest.fixture
def bring(engine_host: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Loads a small image into the engine; its digest."""
    client = APIClient(base_url=engine_host)
    loaded = []

    def one(**config: object) -> str:
        layout = small_layout(tmp_path / f"small-{len(loaded)}", (folder("bin"), entry("bin/x", b"x")), **config)
        for line in client.load_image(engine_archive(layout)):
            assert "error" not in line
        loaded.append(layout.reference)
        return layout.manifest_digest

    yield one
    for reference in loaded:
        client.remove_image(reference)
    client.close()


@on_docker
def test_an_image_without_what_a_sandbox_needs_is_told(backend: DockerBackend, bring: Callable[..., str]) -> None:
    with pytest.raises(ImageUnavailable, match="it needs perl, tar and find") as told:
        sh(backend, bring(), "true")
    assert "\n" not in told.value.message.strip()


@on_docker
def test_an_image_for_another_machine_is_told(backend: DockerBackend, bring: Callable[..., str]) -> None:
    other = next(name for name in ARCHITECTURES if name != this_architecture())
    with pytest.raises(
        ImageUnavailable, match=f"is for {other}, and the engine runs on {ARCHITECTURES[this_architecture()]}"
    ):
        sh(backend, bring(architecture=other), "true")


@on_docker
def test_what_an_image_would_have_done_when_others_are_built_on_it_is_not_done(
    engine_host: str, sandbox_image: str, backend: DockerBackend
) -> None:
    client = APIClient(base_url=engine_host)
    [found] = client.images(filters={"reference": f"patchyard/*:{sandbox_image.replace(':', '-')}"})
    container = client.create_container(found["Id"], ["true"])["Id"]
    image = client.commit(container, changes=["ONBUILD RUN touch /built"])["Id"]
    client.remove_container(container)
    try:
        assert sh(backend, image, "ls /built; id -u").output.splitlines()[-1] == b"65532"
        assert b"No such file" in sh(backend, image, "ls /built").output
    finally:
        client.remove_image(image)
        client.close()


# -- an engine whose disk is full --------------------------------------------------------------------------------------


class _FullEngine(BaseHTTPRequestHandler):
    """Says what engines say then."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        status, body = 500, b'{"message": "mkdir /var/lib/x: no space left on device"}'
        if self.path.endswith("/version"):
            status, body = 200, b'{"ApiVersion": "1.41", "Version": "1"}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


def test_an_engine_whose_disk_is_full_is_a_full_disk() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _FullEngine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    backend = DockerBackend(f"tcp://127.0.0.1:{server.server_port}", MemoryRegistry("full"))
    try:
        with pytest.raises(DiskFull, match=r"^EDISK: the engine at tcp://.*no space left on device"):
            backend.find()
    finally:
        backend.close()
        server.shutdown()
        server.server_close()


def test_an_archive_of_the_engine_is_what_it_is(tmp_path: Path) -> None:
    layout = small_layout(tmp_path / "small", (entry("a"),), (entry("b"),))
    with tarfile.open(fileobj=io.BytesIO(b"".join(engine_archive(layout)))) as archive:
        names = archive.getnames()
    assert names[0] == "manifest.json"
    assert len([name for name in names if name.startswith("blobs/sha256/")]) == 4
