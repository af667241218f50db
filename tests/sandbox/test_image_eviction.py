"""An image that nothing uses can be taken away and brought back; one that a sandbox has stays."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from images.oci_layout import Layout, read_layout
from ledger.errors import DiskFull
from ledger.records.base import canonical_json
from runners.sandbox.backend import Backend, ImageUnavailable
from runners.sandbox.oci import OciBackend
from runners.sandbox.oci.images import Images
from runners.sandbox.oci.removal import remove_all
from tests.fixtures.disk import small_disk
from tests.fixtures.engine import MemoryRegistry, lend_images
from tests.sandbox.inside import sh, spec_of


@pytest.fixture
def another(sandbox_layout: Layout, tmp_path: Path) -> Layout:
    """The sandbox image under another digest."""
    folder = tmp_path / "another"
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def store(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def of(digest: str) -> Path:
        return sandbox_layout.folder / "blobs/sha256" / digest.removeprefix("sha256:")

    config = json.loads(of(sandbox_layout.config_digest).read_bytes()) | {"author": f"{tmp_path}"}
    manifest = json.loads(of(sandbox_layout.manifest_digest).read_bytes())
    manifest["config"] |= store(canonical_json(config))
    (blobs / of(sandbox_layout.layer_digest).name).symlink_to(of(sandbox_layout.layer_digest))
    index = json.loads((sandbox_layout.folder / "index.json").read_bytes())
    index["manifests"][0] |= store(canonical_json(manifest))
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.title": "another"}
    (folder / "index.json").write_bytes(canonical_json(index))
    (folder / "oci-layout").write_bytes(b'{"imageLayoutVersion": "1.0.0"}')
    return read_layout(folder)


@pytest.fixture
def loaded(another: Layout, make_backend: Callable[..., Backend]) -> Iterator[str]:
    backend = make_backend()
    backend.load_image(another.folder)
    yield another.manifest_digest
    assert backend.remove_image(another.manifest_digest)


@pytest.mark.slow
def test_an_image_in_use_stays_and_one_that_went_comes_back(
    backend: Backend, make_backend: Callable[..., Backend], another: Layout, loaded: str
) -> None:
    began = time.time()
    [stored] = [image for image in backend.stored_images() if image.digest == loaded]
    assert stored.name == "another"
    assert stored.size_bytes > 50_000_000
    assert stored.used_at == 0 or began - stored.used_at < 600  # an engine cannot always tell
    other = make_backend()
    running, go_on = threading.Event(), threading.Event()

    def files() -> Iterator[bytes]:
        running.set()
        go_on.wait(60)
        yield bytes(10_240)

    ends: list[bytes] = []
    spec = spec_of(loaded, "sh", "-c", "echo here", deadline_seconds=100)
    user = threading.Thread(target=lambda: ends.append(backend.run(spec, files()).output))
    user.start()
    assert running.wait(60)
    assert not other.remove_image(loaded)
    assert other.has_image(loaded)
    go_on.set()
    user.join()
    assert ends == [b"here\n"]
    assert other.remove_image(loaded)
    assert not backend.has_image(loaded)
    with pytest.raises(ImageUnavailable):
        sh(backend, loaded, "true")
    backend.load_image(another.folder)
    assert sh(backend, loaded, "echo again").output == b"again\n"


def test_where_a_backend_keeps_things_is_on_this_machine(backend: Backend) -> None:
    assert backend.folders()
    assert all(folder.is_dir() for folder in backend.folders())


def test_an_image_that_does_not_fit_is_a_full_disk_and_leaves_nothing(sandbox_layout: Layout, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        shelf = Images(disk)
        with pytest.raises(DiskFull, match=r"^EDISK: .*: No space left on device"):
            shelf.load(sandbox_layout.folder)
        assert [path.name for path in disk.iterdir()] == ["lock"]
        assert shelf.find(sandbox_layout.manifest_digest) is None
    with small_disk(tmp_path / "few", megabytes=2000, inodes=100) as disk, pytest.raises(DiskFull):
        Images(disk).load(sandbox_layout.folder)


def test_a_sandbox_that_does_not_fit_is_a_full_disk_and_leaves_nothing(sandbox_layout: Layout, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=4, inodes=60) as disk:
        lend_images(disk, sandbox_layout)
        backend = OciBackend(disk, MemoryRegistry("full"))
        assert sh(backend, sandbox_layout.manifest_digest, "echo fits").output == b"fits\n"
        room = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))
        with pytest.raises(DiskFull, match=r"^EDISK: .*/sandboxes: No space left on device"):
            sh(backend, sandbox_layout.manifest_digest, "true")
        (disk / "ballast").unlink()
        for number in range(os.statvfs(disk).f_favail):
            (disk / str(number)).touch()
        with pytest.raises(DiskFull):
            sh(backend, sandbox_layout.manifest_digest, "true")
        assert backend.find() == []
        for path in disk.glob("[0-9]*"):
            path.unlink()
        assert sh(backend, sandbox_layout.manifest_digest, "echo again").output == b"again\n"
        backend.close()
        assert remove_all(disk) == []
