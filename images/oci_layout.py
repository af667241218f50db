"""OCI image layouts, written by ourselves so that the same content always has the same digest.

One uncompressed layer (a compressor's version would change the digest), canonical JSON, no date of the build. The
digest of the manifest is an image's identity everywhere; the digest of its configuration is what an engine with the
classic image store calls the image's id. See the OCI image specification, `image-layout.md` and `manifest.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from images.recipe import Recipe
from images.rootfs import EPOCH_SECONDS
from ledger.errors import BadInput
from ledger.records.base import Record, canonical_json

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
GZIP_LAYER_TYPES = (f"{LAYER_TYPE}+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip")
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (MANIFEST_TYPE, "application/vnd.docker.distribution.manifest.v2+json")
TITLE = "org.opencontainers.image.title"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Go's names, which images use, and the kernel's."""
CHUNK_BYTES = 1 << 20
LOCALHOST_LABEL = "patchyard.localhost"
"""On an image that knows localhost without an /etc/hosts (libnss-myhostname): a sandbox of it needs no network files
from the engine, and so no network set up at all, which takes an engine half of the time to start a container."""
LOCALHOST_RESOLVED = "resolved"
LOCALHOST_PACKAGE = "libnss-myhostname"


class Layer(Record):
    """One layer of an image: the digest of the file, and of the tar in it once it is unpacked."""

    media_type: str
    digest: str
    diff_id: str


class Layout(Record):
    """A layout in a folder. Digests are `sha256:` and 64 hexadecimal digits.

    `manifest_digest` is the image's identity: its manifest's, or its index's where it was named by that. `layers` are
    in their order, the lowest first; `architecture` is Go's name for it.
    """

    name: str
    folder: Path
    manifest_digest: str
    config_digest: str
    architecture: str
    layers: tuple[Layer, ...]

    @property
    def layer_digest(self) -> str:
        """The lowest layer's."""
        return self.layers[0].digest

    def blob(self, digest: str) -> Path:
        """Where a blob lies."""
        return blob_path(self.folder, digest)

    @property
    def reference(self) -> str:
        """The name under which an engine keeps the image; it holds the manifest's digest, so that it is found by it."""
        return f"patchyard/{self.name}:{self.manifest_digest.replace(':', '-')}"


def write_layout(recipe: Recipe, layer: Path, architecture: str, folder: Path) -> Layout:
    """Make `folder` a layout of one image with the tar file `layer` (which is moved into it)."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer_digest, layer_bytes = _digest_of(layer)
    layer.rename(blobs / layer_digest.removeprefix("sha256:"))
    config = _store(blobs, canonical_json(_config(recipe, architecture, layer_digest)))
    manifest = _store(
        blobs,
        canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": {"mediaType": CONFIG_TYPE, **config},
                "layers": [{"mediaType": LAYER_TYPE, "digest": layer_digest, "size": layer_bytes}],
            }
        ),
    )
    descriptor = {
        "mediaType": MANIFEST_TYPE,
        **manifest,
        "annotations": {TITLE: recipe.name},
        "platform": {"os": "linux", "architecture": architecture},
    }
    return finish_layout(folder, descriptor)


def finish_layout(folder: Path, descriptor: dict[str, Any]) -> Layout:
    """Make a layout of a folder that has its blobs: `descriptor` names its one image."""
    index = {"schemaVersion": 2, "manifests": [descriptor]}
    (folder / "index.json").write_bytes(canonical_json(index))
    (folder / "oci-layout").write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))
    return read_layout(folder)


def read_layout(folder: Path) -> Layout:
    """The one image of a layout. Raises BadInput when `folder` is not a layout or a blob is not what its name says."""
    try:
        descriptor = json.loads((folder / "index.json").read_bytes())["manifests"][0]
        manifest = resolve_manifest(descriptor["digest"], lambda digest: _blob(folder, digest))
        config = json.loads(_blob(folder, manifest["config"]["digest"]))
        diff_ids = config["rootfs"]["diff_ids"] if "rootfs" in config else [one["digest"] for one in manifest["layers"]]
        layers = zip(manifest["layers"], diff_ids, strict=True)
        return Layout(
            name=descriptor["annotations"][TITLE],
            folder=folder,
            manifest_digest=descriptor["digest"],
            config_digest=manifest["config"]["digest"],
            architecture=config["architecture"],
            layers=tuple(
                Layer(media_type=one["mediaType"], digest=one["digest"], diff_id=diff_id) for one, diff_id in layers
            ),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as broken:
        raise BadInput(
            f"is not an image layout ({broken})", where=str(folder), remedy="build it again: patchyard images build"
        ) from broken


def resolve_manifest(digest: str, read: Callable[[str], bytes]) -> dict[str, Any]:
    """The image's manifest: the one of this digest, or of an index of this digest the one for this machine.

    `read` gives a blob that is what its digest says. Raises ValueError, KeyError for what is no manifest.
    """
    content: dict[str, Any] = json.loads(read(digest))
    if content.get("mediaType") not in INDEX_TYPES and "manifests" not in content:
        return content
    for one in content["manifests"]:
        platform = one.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", this_architecture()):
            manifest: dict[str, Any] = json.loads(read(one["digest"]))
            return manifest
    raise ValueError(f"it has no image for linux/{this_architecture()}")


def this_architecture() -> str:
    """Go's name for this machine's architecture, which images use."""
    kernels = os.uname().machine
    return next((ours for ours, theirs in ARCHITECTURES.items() if theirs == kernels), kernels)


def blob_path(folder: Path, digest: str) -> Path:
    """Where the layout in `folder` has a blob. Raises ValueError for what is no sha256 digest."""
    algorithm, _, hexadecimal = digest.partition(":")
    if algorithm != "sha256" or len(hexadecimal) != 64 or not set(hexadecimal) <= set("0123456789abcdef"):
        raise ValueError(f"{digest!r} is no sha256 digest")
    return folder / "blobs" / "sha256" / hexadecimal


def engine_archive(layout: Layout) -> Iterator[bytes]:
    """The layout as the tar stream that `POST /images/load` takes, in pieces.

    It serves both kinds of engines: the classic store reads `manifest.json` and names the image by its configuration's
    digest, the containerd store reads `index.json` and names it by the manifest's.
    """
    config, *layers = (
        f"blobs/sha256/{digest.removeprefix('sha256:')}"
        for digest in (layout.config_digest, *(layer.digest for layer in layout.layers))
    )
    manifest_json = canonical_json([{"Config": config, "RepoTags": [layout.reference], "Layers": layers}])
    yield _member("manifest.json", len(manifest_json)) + _padded(manifest_json)
    yield from layout_archive(layout)


def layout_archive(layout: Layout) -> Iterator[bytes]:
    """The layout as a tar stream, in pieces: the same layout gives the same bytes."""
    files = [Path("oci-layout"), Path("index.json")]
    files += sorted(path.relative_to(layout.folder) for path in (layout.folder / "blobs" / "sha256").iterdir())
    for name in files:
        path = layout.folder / name
        size = path.stat().st_size
        yield _member(str(name), size)
        with path.open("rb") as content:
            while piece := content.read(CHUNK_BYTES):
                yield piece
        yield b"\0" * (-size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _config(recipe: Recipe, architecture: str, layer_digest: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(EPOCH_SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{recipe.user.uid}:{recipe.user.gid}",
            "Env": [f"{name}={value}" for name, value in sorted(recipe.env.items())],
            "Cmd": ["/bin/bash"],
            "WorkingDir": "/workspace",
            "Labels": _labels(recipe),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        "history": [{"created": created, "created_by": f"patchyard images build {recipe.name}"}],
    }


def _labels(recipe: Recipe) -> dict[str, str]:
    knows_localhost = {LOCALHOST_LABEL: LOCALHOST_RESOLVED} if LOCALHOST_PACKAGE in recipe.packages else {}
    return {TITLE: recipe.name, **knows_localhost}


def _digest_of(path: Path) -> tuple[str, int]:
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return f"sha256:{digest}", path.stat().st_size


def _store(blobs: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def _blob(folder: Path, digest: str) -> bytes:
    content = blob_path(folder, digest).read_bytes()
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise ValueError(f"blob {digest} has other content")
    return content


def _member(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % tarfile.BLOCKSIZE)
