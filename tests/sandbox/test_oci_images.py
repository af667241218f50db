"""Images as folders: what a hostile archive cannot do, and what becomes of a file that somebody changed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from images.oci_layout import Layout, read_layout
from ledger.records.base import canonical_json
from runners.sandbox.backend import ImageUnavailable
from runners.sandbox.oci import OciBackend
from runners.sandbox.oci.images import Images
from runners.sandbox.oci.removal import remove_all
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import sh, spec_of, tar_of

on_oci = pytest.mark.parametrize("kind", ["oci-crun", "oci-runc"], indirect=True, scope="session")


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """Makes a layout of one small layer; members are tar entries with their content."""

    def make(*members: tuple[tarfile.TarInfo, bytes], **config: Any) -> Path:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for entry, data in members:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return _layout(tmp_path / f"layout-{time.monotonic_ns()}", packed.getvalue(), config)

    return make


def _layout(folder: Path, layer: bytes, config: dict[str, Any]) -> Path:
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def store(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    stored = store(canonical_json({"architecture": architecture, "os": "linux", "config": {}} | config))
    manifest = {
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **stored},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **store(layer)}],
    }
    named = {"annotations": {"org.opencontainers.image.title": "small"}, **store(canonical_json(manifest))}
    (folder / "index.json").write_bytes(canonical_json({"schemaVersion": 2, "manifests": [named]}))
    return folder


def _entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, mode
    return entry


def _folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return _entry(name, tarfile.DIRTYPE, mode=0o755), b""


@pytest.fixture
def shelf(tmp_path: Path) -> Images:
    folder = tmp_path / "images"
    folder.mkdir()
    return Images(folder)


@pytest.mark.parametrize(
    "members",
    [
        [(_entry("../evil"), b"x")],
        [(_entry("a/../../evil"), b"x")],
        [(_entry("link", tarfile.SYMTYPE, "/etc"), b""), (_entry("link/evil"), b"x")],
        [(_entry("link", tarfile.SYMTYPE, ".."), b""), (_entry("link/evil"), b"x")],
        [_folder("a"), (_entry("a/up", tarfile.SYMTYPE, "../.."), b""), (_entry("a/up/evil"), b"x")],
        [(_entry("passwd", tarfile.LNKTYPE, "../../../../etc/passwd"), b"")],
        [(_entry("l", tarfile.SYMTYPE, "/etc"), b""), (_entry("passwd", tarfile.LNKTYPE, "l/passwd"), b"")],
        [(_entry("s", tarfile.SYMTYPE, "/etc/passwd"), b""), (_entry("h", tarfile.LNKTYPE, "s"), b"")],
        [(_entry("twice"), b"x"), (_entry("twice"), b"y")],
        [(_entry("s", tarfile.SYMTYPE, "/etc/passwd"), b""), (_entry("s"), b"x")],
        [(_entry("s", tarfile.SYMTYPE, "/etc"), b""), _folder("s")],
        [(_entry("proc", tarfile.SYMTYPE, "/etc"), b"")],
        [(_entry("dev"), b"a file")],
        [(_entry(".wh.x"), b"")],
    ],
)
def test_an_archive_that_leads_out_of_its_root_is_refused(
    shelf: Images, small: Callable[..., Path], tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    with pytest.raises(ImageUnavailable):
        shelf.load(small(*members))
    assert not list(tmp_path.rglob("evil*"))
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["lock"]


def test_an_image_is_unpacked_without_privileges_and_with_its_mount_points(
    shelf: Images, small: Callable[..., Path]
) -> None:
    layout = small(
        _folder("usr"), _folder("usr/bin"), (_entry("usr/bin/su", mode=0o6755), b"su"),
        (_entry("usr/bin/alias", tarfile.LNKTYPE, "usr/bin/su"), b""), (_entry("disk", tarfile.BLKTYPE), b""),
        (_entry("pipe", tarfile.FIFOTYPE), b""), _folder("etc"), (_entry("bin", tarfile.SYMTYPE, "usr/bin"), b""),
    )  # fmt: skip
    image = shelf.load(layout)
    root = shelf.root(image)
    assert (root / "usr/bin/su").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/bin/su").stat().st_ino == (root / "usr/bin/alias").stat().st_ino
    assert sorted(path.name for path in root.iterdir()) == [
        "bin", "dev", "etc", "proc", "sys", "tmp", "usr", "workspace",
    ]  # fmt: skip
    assert "localhost" in (root / "etc/hosts").read_text()
    assert image.lacks == ("/usr/bin/perl", "tar", "find")
    assert shelf.load(layout) == image


def test_a_layer_that_is_not_what_the_manifest_says_is_not_kept(
    shelf: Images, small: Callable[..., Path], tmp_path: Path
) -> None:
    layout = read_layout(small((_entry("a"), b"one")))
    blob = layout.folder / "blobs/sha256" / layout.layer_digest.removeprefix("sha256:")
    blob.write_bytes(blob.read_bytes().replace(b"one", b"two"))
    with pytest.raises(ImageUnavailable, match="other content than its name says"):
        shelf.load(layout.folder)
    assert shelf.find(layout.manifest_digest) is None
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["lock"]


@pytest.mark.parametrize("config", [{"architecture": "s390x"}])
def test_an_image_for_another_machine_is_refused(
    shelf: Images, small: Callable[..., Path], config: dict[str, Any]
) -> None:
    with pytest.raises(ImageUnavailable, match="is for s390x"):
        shelf.load(small((_entry("a"), b"x"), **config))


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "a").write_text("two"),
    "mode": lambda root: (root / "a").chmod(0o755),
    "owner": lambda root: os.chown(root / "a", 1, 1),
    "time": lambda root: os.utime(root / "a", (0, 0)),
    "another": lambda root: (root / "b").touch(),
    "gone": lambda root: (root / "a").unlink(),
    "replaced": lambda root: ((root / "a").rename(root / "c"), (root / "c").rename(root / "a")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_found_and_mended(
    shelf: Images, small: Callable[..., Path], tmp_path: Path, change: str
) -> None:
    layout = small((_entry("a"), b"one"))
    image = shelf.load(layout)
    assert Images(tmp_path / "images").find(image.manifest) == image
    CHANGES[change](shelf.root(image))
    other = Images(tmp_path / "images")
    assert other.find(image.manifest) is None
    mended = other.load(layout)
    assert (other.root(mended) / "a").read_text() == "one"
    assert Images(tmp_path / "images").find(image.manifest) == mended


def test_what_a_killed_loader_left_is_taken_away(shelf: Images, small: Callable[..., Path], tmp_path: Path) -> None:
    half = tmp_path / "images/.unpacking-x"
    (half / "image/rootfs").mkdir(parents=True)
    shelf.load(small((_entry("a"), b"x")))
    assert not half.exists()


@pytest.fixture
def hostile(sandbox_layout: Layout, tmp_path: Path) -> Path:
    """The sandbox image with a configuration that tries all it can."""
    wishes = {
        "User": "root", "WorkingDir": "/proc/self/fd/7", "Env": ["SECRET=1", "PATH=/evil", "PERL5OPT=-Mevil"],
        "Volumes": {"/data": {}}, "Entrypoint": ["/bin/false"], "StopSignal": "SIGCONT",
        "Labels": {"patchyard.localhost": ""},
    }  # fmt: skip
    layer = sandbox_layout.folder / "blobs/sha256" / sandbox_layout.layer_digest.removeprefix("sha256:")
    folder = _layout(tmp_path / "hostile", b"", {"config": wishes})
    index = json.loads((folder / "index.json").read_bytes())
    manifest_blob = folder / "blobs/sha256" / index["manifests"][0]["digest"].removeprefix("sha256:")
    manifest = json.loads(manifest_blob.read_bytes())
    manifest["layers"][0] |= {"digest": sandbox_layout.layer_digest, "size": layer.stat().st_size}
    content = canonical_json(manifest)
    index["manifests"][0] |= {"digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}
    (folder / "blobs/sha256" / hashlib.sha256(content).hexdigest()).write_bytes(content)
    (folder / "blobs/sha256" / layer.name).symlink_to(layer)
    (folder / "index.json").write_bytes(canonical_json(index))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["oci-crun"], indirect=True, scope="session")
def test_nothing_that_an_image_declares_weakens_its_sandbox(kind: str, hostile: Path, tmp_path: Path) -> None:
    backend = OciBackend(tmp_path / "home", MemoryRegistry("hostile"))
    script = "id -u; pwd; env | sort; ls -d /data; getent hosts localhost; cat /etc/resolv.conf"
    result = sh(backend, backend.load_image(hostile), script)
    lines = result.output.decode().splitlines()
    assert lines[:2] == ["65532", "/workspace"]
    assert not [line for line in lines if line.startswith(("SECRET", "PERL5OPT"))]
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in lines
    assert "ls: cannot access '/data': No such file or directory" in lines
    assert any(line.endswith("localhost ip6-localhost ip6-loopback") for line in lines)
    assert not [line for line in lines if line.startswith("nameserver")]
    backend.close()
    assert remove_all(tmp_path / "home") == []


@on_oci
def test_an_image_that_lacks_what_a_sandbox_needs_is_said_so(
    kind: str, small: Callable[..., Path], tmp_path: Path
) -> None:
    backend = OciBackend(tmp_path / "home", MemoryRegistry("lacks"), runtime=kind.partition("-")[2])
    digest = backend.load_image(small((_entry("a"), b"x")))
    with pytest.raises(ImageUnavailable, match="it needs /usr/bin/perl, tar, find"):
        sh(backend, digest, "true")
    with pytest.raises(ImageUnavailable, match="something else"):
        backend.run(spec_of(digest, "true", image_config="sha256:" + "0" * 64), tar_of())
    backend.close()
