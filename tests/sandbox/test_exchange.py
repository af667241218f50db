"""Images in and out: one digest wherever they come from and go to, and nothing believed that came from elsewhere."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from docker import APIClient

from images.exchange import export_layout, image_name, import_image
from images.oci_layout import Layout, engine_archive, layout_archive, read_layout
from images.registry import Reference, RegistryUnavailable, pull
from ledger.errors import BadInput
from patchyard.image_exchange import give_out, take_in
from patchyard.image_shelf import layouts_of, locked_images
from patchyard.settings import Settings, load_settings
from runners.sandbox.backend import ImageUnavailable
from runners.sandbox.docker import DockerBackend
from runners.sandbox.oci.images import Images
from tests.fixtures.engine import MemoryRegistry
from tests.fixtures.layouts import entry, folder, layout_of, manifest_of, small_layout, store

LAYERS = ((folder("etc"), entry("etc/a", b"a"), entry("b", b"b")), (entry(".wh.b"), entry("c", b"c")))
ELSEWHERE = {"amd64": "arm64", "arm64": "amd64"}


@pytest.fixture
def small(tmp_path: Path) -> Layout:
    return small_layout(tmp_path / "small", *LAYERS, packed=True)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "lock.toml").touch()
    return load_settings(home=tmp_path / "home", docker_host=None, images_lock=tmp_path / "lock.toml")


def _draft(tmp_path: Path) -> Path:
    made = tmp_path / f"draft-{time.monotonic_ns()}"
    made.mkdir()
    return made


def _tar(path: Path, layout: Layout) -> Path:
    path.write_bytes(b"".join(layout_archive(layout)))
    return path


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_a_layout_keeps_its_digest_as_folder_and_as_tar(small: Layout, tmp_path: Path) -> None:
    export_layout(small, tmp_path / "out")
    export_layout(small, tmp_path / "out.tar")
    (tmp_path / "out.tar.gz").write_bytes(gzip.compress((tmp_path / "out.tar").read_bytes()))
    for source in ("out", "out.tar", "out.tar.gz"):
        taken = import_image(tmp_path / source, _draft(tmp_path), "again")
        assert (taken.manifest_digest, taken.layers, taken.name) == (small.manifest_digest, small.layers, "again")
    with pytest.raises(BadInput, match="is there already"):
        export_layout(small, tmp_path / "out")
    with pytest.raises(BadInput, match="no such folder"):
        export_layout(small, tmp_path / "no/such/folder")
    assert not list(tmp_path.glob(".out*"))


def test_what_others_write_is_taken_too(small: Layout, tmp_path: Path) -> None:
    """A layout without our title, in which the image is one of an index for several machines, with attestations."""
    place = tmp_path / "theirs"
    here = manifest_of(place, *LAYERS)
    other = manifest_of(place, (entry("x"),), architecture=ELSEWHERE[small.architecture])
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            other | {"platform": {"os": "linux", "architecture": ELSEWHERE[small.architecture]}},
            here | {"platform": {"os": "linux", "architecture": small.architecture}},
            here | {"platform": {"os": "unknown", "architecture": "unknown"}},
        ],
    }
    named = {"mediaType": index["mediaType"], **store(place, json.dumps(index).encode())}
    taken = import_image(layout_of(place, named, title=None), _draft(tmp_path), "theirs")
    assert taken.manifest_digest == named["digest"], "it keeps the digest by which it is named"
    layers = json.loads((place / "blobs/sha256" / here["digest"][7:]).read_bytes())["layers"]
    assert [layer.digest for layer in taken.layers] == [layer["digest"] for layer in layers]
    assert not taken.blob(other["digest"]).exists(), "only what is needed is kept"
    assert read_layout(taken.folder) == taken
    (tmp_path / "images").mkdir()
    assert Images(tmp_path / "images").load(taken.folder).manifest == named["digest"]


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda place: (place / "index.json").unlink(), "neither an index.json nor a manifest.json"),
    "no json": (lambda place: (place / "index.json").write_text("{"), "cannot be taken as an image"),
    "no manifests": (lambda place: (place / "index.json").write_text("{}"), "'manifests' is missing"),
    "no blobs": (lambda place: shutil.rmtree(place / "blobs"), "the blob sha256:[0-9a-f]{64} is not in it"),
    "another digest": (
        lambda place: (place / "index.json").write_text('{"manifests": [{"digest": "sha256:../../x"}]}'),
        "is no sha256 digest",
    ),
    "a layer changed": (
        lambda place: max((place / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size).write_bytes(b"x"),
        "or has other content than its name says",
    ),
    "two images": (lambda place: layout_of(place, *(manifest_of(place, (entry(n),)) for n in "xy")), "it has 2 images"),
    "another machine": (
        lambda place: layout_of(place, manifest_of(place, (entry("x"),), architecture="s390x")),
        "it is for s390x, and this machine is",
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_what_is_no_layout_of_one_image_is_one_line(
    small: Layout, tmp_path: Path, settings: Settings, how: str
) -> None:
    change, message = BAD[how]
    change(small.folder)
    with pytest.raises(BadInput, match=message) as wrong:
        take_in(settings, str(small.folder), None)
    assert wrong.value.message.startswith(f"{small.folder}: cannot be taken as an image: ")
    assert "\n" not in wrong.value.message
    assert [path.name for path in (settings.home / "images").iterdir()] == []


def test_no_path_of_an_archive_is_used(small: Layout, tmp_path: Path) -> None:
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as out:
        for name in ("../escaped", "/tmp/escaped", "blobs/sha256/../../../escaped"):
            made = tarfile.TarInfo(name)
            made.size = 1
            out.addfile(made, io.BytesIO(b"x"))
        for name, target in (("index.json", "/etc/hostname"), ("blobs", "/etc")):
            made = tarfile.TarInfo(name)
            made.type, made.linkname = tarfile.SYMTYPE, target
            out.addfile(made)
    with pytest.raises(BadInput, match="neither an index"):
        import_image(evil, _draft(tmp_path), "evil")
    assert not list(tmp_path.rglob("escaped"))
    (tmp_path / "cut.tar").write_bytes((_tar(tmp_path / "whole.tar", small)).read_bytes()[:5000])
    with pytest.raises(BadInput, match="cannot be taken as an image"):
        import_image(tmp_path / "cut.tar", _draft(tmp_path), "cut")


# -- the shelf ---------------------------------------------------------------------------------------------------------


def test_an_imported_image_has_a_name_and_a_place_here(small: Layout, settings: Settings, tmp_path: Path) -> None:
    source = _tar(tmp_path / "My Image_v1.tar", small)
    assert take_in(settings, str(source), None)[0] == "my-image-v1"
    name, entry_ = take_in(settings, str(source), "mine")
    assert (name, entry_.digest, entry_.distribution) == ("mine", small.manifest_digest, "imported")
    assert locked_images(settings)["mine"].digest == small.manifest_digest
    assert layouts_of(settings).find(small.manifest_digest) is not None
    assert len(list((settings.home / "images").glob("*/index.json"))) == 1, "one image, two names"
    assert give_out(settings, "mine", tmp_path / "again.tar") == small.manifest_digest
    assert import_image(tmp_path / "again.tar", _draft(tmp_path), "x").manifest_digest == small.manifest_digest
    for wrong, message in (("sandbox-python", "is the name of a recipe"), ("A b", "is no name for an image")):
        with pytest.raises(BadInput, match=message):
            take_in(settings, str(source), wrong)
    with pytest.raises(BadInput, match="no such image layout or archive"):
        take_in(settings, str(tmp_path / "none.tar"), None)
    with pytest.raises(BadInput, match="was neither built nor imported here"):
        give_out(settings, "sha256:" + "0" * 64, tmp_path / "none")
    assert image_name("Ünïcode  ..") == "n-code"


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_engine(engine_host: str, small: Layout) -> Iterator[str]:
    """The image under a name of the engine's own."""
    client = APIClient(base_url=engine_host)
    for line in client.load_image(engine_archive(small)):
        assert "error" not in line
    name = f"exchange-{os.getpid()}:latest"
    client.tag(small.reference, name)
    client.remove_image(small.reference)
    yield name
    client.remove_image(name, force=True)
    client.close()


@pytest.mark.engine
def test_an_engines_image_has_one_digest_that_depends_on_its_content_alone(
    engine_host: str, in_engine: str, settings: Settings, small: Layout, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"docker_host": engine_host})
    _, taken = take_in(settings, f"docker:{in_engine}", "mine")
    client = APIClient(base_url=engine_host)
    (tmp_path / "saved.tar").write_bytes(b"".join(client.get_image(in_engine)))
    _, again = take_in(settings, str(tmp_path / "saved.tar"), "again")
    assert taken.digest == again.digest
    assert taken.config == small.config_digest == client.inspect_image(in_engine)["Id"]
    layout = layouts_of(settings).find(taken.digest)
    assert layout is not None
    (tmp_path / "images").mkdir()
    shelf = Images(tmp_path / "images")
    assert shelf.load(layout).manifest == taken.digest
    assert (shelf.root(shelf.load(layout)) / "c").read_bytes() == b"c"
    backend = DockerBackend(engine_host, MemoryRegistry("none"))
    try:
        backend.load_image(layout)
        assert backend.has_image(taken.digest)
        assert backend.remove_image(taken.digest)
    finally:
        backend.close()
        client.close()
    with pytest.raises(ImageUnavailable):
        take_in(settings, "docker:no-such-image-here", None)


# -- registries --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real registry on this machine: its address, and where it keeps things."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    place = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    (place / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http: {{addr: '{host}'}}\n"
    )
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", place / "config.yml"], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                requests.get(f"http://{host}/v2/", timeout=1)
                break
            except requests.ConnectionError:
                assert time.monotonic() < until
                time.sleep(0.05)
        yield host, place / "data"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.engine
def test_a_registrys_image_has_the_registrys_digest_in_every_backend(
    registry: tuple[str, Path], engine_host: str, in_engine: str, settings: Settings, tmp_path: Path
) -> None:
    host, data = registry
    client = APIClient(base_url=engine_host)
    client.tag(in_engine, f"{host}/some/image", "v1")
    pushed = [json.loads(line) for line in client.push(f"{host}/some/image", "v1", stream=True)]
    [digest] = [line["aux"]["Digest"] for line in pushed if "Digest" in line.get("aux", {})]
    client.remove_image(f"{host}/some/image:v1")
    reference = f"{host}/some/image@{digest}"

    name, taken = take_in(settings, reference, None)
    assert (name, taken.digest) == ("image", digest)
    layout = layouts_of(settings).find(digest)
    assert layout is not None
    (tmp_path / "images").mkdir()
    shelf = Images(tmp_path / "images")
    assert shelf.load(layout).manifest == digest
    assert (shelf.root(shelf.load(layout)) / "c").read_bytes() == b"c"
    backend = DockerBackend(engine_host, MemoryRegistry("none"))
    try:
        assert not backend.has_image(digest)
        client.pull(reference)
        assert backend.has_image(digest), "an engine that pulled it by itself has it under the same digest"
        client.remove_image(reference)
        backend.load_image(layout)
        assert backend.has_image(digest), "and so has one that was given what we pulled"
        backend.remove_image(digest)
    finally:
        backend.close()
        client.close()

    with pytest.raises(BadInput, match="is not in the registry"):
        take_in(settings, f"{host}/some/image@sha256:{'0' * 64}", None)
    top = layout / "blobs/sha256" / read_layout(layout).layers[0].digest[7:]
    [stored] = [path for path in data.rglob("data") if path.parent.name == top.name]
    stored.write_bytes(b"x" * stored.stat().st_size)
    with pytest.raises(BadInput, match=r"the registry gave sha256:[0-9a-f]{64} for sha256:.*; do not trust it"):
        pull(Reference(host=host, name="some/image", digest=digest), _draft(tmp_path), "image")


class _Guarded(BaseHTTPRequestHandler):
    """A registry that gives a token to everybody, and things only to who has it."""

    blobs: dict[str, bytes] = {}
    status = 200

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/token":
            self._answer(200, json.dumps({"token": "let-me-in"}).encode())
        elif self.headers.get("Authorization") != "Bearer let-me-in":
            where = f"http://127.0.0.1:{self.server.server_port}/token"  # type: ignore[attr-defined]
            self._answer(401, b"", [("WWW-Authenticate", f'Bearer realm="{where}",service="r",scope="pull"')])
        elif self.status != 200:
            self._answer(self.status, b"")
        else:
            digest = path.rpartition("/")[2]
            kind = "application/vnd.oci.image.manifest.v1+json" if "/manifests/" in path else "application/octet-stream"
            self._answer(200 if digest in self.blobs else 404, self.blobs.get(digest, b""), [("Content-Type", kind)])

    def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]] | None = None) -> None:
        self.send_response(status)
        for name, value in headers or []:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@pytest.fixture
def guarded(small: Layout) -> Iterator[str]:
    _Guarded.blobs = {f"sha256:{path.name}": path.read_bytes() for path in (small.folder / "blobs/sha256").iterdir()}
    _Guarded.status = 200
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Guarded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_registry_that_wants_a_token_is_asked_for_one(guarded: str, small: Layout, tmp_path: Path) -> None:
    reference = Reference.read(f"{guarded}/a/b@{small.manifest_digest}")
    assert reference is not None
    assert pull(reference, _draft(tmp_path), "b").layers == small.layers
    for status, error, message in (
        (403, BadInput, "the registry wants a login; pull it with an engine"),
        (503, RegistryUnavailable, "answered 503"),
    ):
        _Guarded.status = status
        with pytest.raises(error, match=message):
            pull(reference, _draft(tmp_path), "b")
    away = reference.model_copy(update={"host": "127.0.0.1:1"})
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        pull(away, _draft(tmp_path), "b")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("registry.example/a/b@", "https://registry.example/v2/a/b"),
        ("registry.example:5000/a@", "https://registry.example:5000/v2/a"),
        ("localhost:5000/a@", "http://localhost:5000/v2/a"),
        ("127.0.0.2:5000/a@", "http://127.0.0.2:5000/v2/a"),
        ("[::1]:5000/a@", "http://[::1]:5000/v2/a"),
        ("127.0.0.1.example/a@", "https://127.0.0.1.example/v2/a"),
        ("python@", None),
        ("a/b@", None),
        ("registry.example/a:v1", None),
        ("registry.example/../a@", None),
    ],
)
def test_a_reference_names_its_registry_and_a_digest(text: str, url: str | None) -> None:
    read = Reference.read(f"{text}sha256:{'a' * 64}" if text.endswith("@") else text)
    assert (read.url if read else None) == url
