"""Images from elsewhere, and images for elsewhere: OCI layouts as folders and tars, and the archives of `docker save`.

What comes in is not believed: each blob's name is the hash of what was read, only what the image needs is kept, and no
path of an archive is ever used as one. An OCI layout keeps its digest. An archive of `docker save` has none, unless it
is an OCI layout too: it is given the digest of a manifest that depends on its content alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from images.oci_layout import (
    CHUNK_BYTES,
    CONFIG_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    TITLE,
    Layout,
    blob_path,
    finish_layout,
    layout_archive,
    resolve_manifest,
    this_architecture,
)
from ledger.errors import BadInput
from ledger.records.base import canonical_json

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
_BLOB = re.compile(r"blobs/sha256/[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def image_name(wished: str) -> str:
    """A name for an image, made of what somebody called it."""
    name = re.sub(r"[^a-z0-9]+", "-", wished.lower()).strip("-")[:63].strip("-")
    return name or "image"


def check_name(name: str) -> str:
    """The name. Raises BadInput for one that no image can have."""
    if not _NAME.fullmatch(name):
        raise BadInput("is no name for an image", where=name, remedy="write small letters, digits and dashes")
    return name


def import_image(source: Path, draft: Path, name: str) -> Layout:
    """The one image of `source`, a folder or tar, as the layout `draft`. Raises BadInput for what has not one image."""
    where = str(source)
    pool = Pool(draft)
    try:
        names = _names_in_folder(source, pool) if source.is_dir() else _names_in_tar(source, pool)
        if "index.json" in names:
            descriptor = _one_descriptor(json.loads(pool.read(names["index.json"])))
        elif "manifest.json" in names:
            descriptor = _descriptor_of_saved(json.loads(pool.read(names["manifest.json"])), names, pool)
        else:
            raise ValueError("there is neither an index.json nor a manifest.json in it")
        return adopt(pool, descriptor["digest"], descriptor.get("mediaType", MANIFEST_TYPE), name)
    except (KeyError, IndexError, TypeError, ValueError, tarfile.TarError, EOFError) as broken:
        what = f"{broken} is missing" if isinstance(broken, KeyError) else str(broken)
        remedy = "give an OCI layout of one image, or what `docker save` writes"
        raise BadInput(f"cannot be taken as an image: {what}", where=where, remedy=remedy) from broken


def adopt(pool: Pool, digest: str, media_type: str, name: str) -> Layout:
    """The layout of the image of this digest, whose blobs are in the pool; other blobs are deleted.

    Raises BadInput, KeyError or ValueError for what is no image.
    """
    needed = {digest}

    def read(one: str) -> bytes:
        needed.add(one)
        return pool.read(one)

    manifest = resolve_manifest(digest, read)
    for one in (manifest["config"], *manifest["layers"]):
        pool.require(one["digest"])
        needed.add(one["digest"])
    pool.keep_only(needed)
    size = blob_path(pool.folder, digest).stat().st_size
    descriptor = {"mediaType": media_type, "digest": digest, "size": size, "annotations": {TITLE: name}}
    layout = finish_layout(pool.folder, descriptor)
    if layout.architecture != this_architecture():
        raise ValueError(f"it is for {layout.architecture}, and this machine is {this_architecture()}")
    return layout


def export_layout(layout: Layout, target: Path) -> None:
    """Write the layout to `target`: a tar if it is called so, else a folder. Raises BadInput if it is there already."""
    if target.exists():
        raise BadInput("is there already", where=str(target), remedy="give another path, or remove it")
    if not target.parent.is_dir():
        raise BadInput("no such folder", where=str(target.parent), remedy="make it, or give another path")
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.suffix == ".tar":
            with beside.open("wb") as out:
                for piece in layout_archive(layout):
                    out.write(piece)
        else:
            shutil.copytree(layout.folder, beside)
        beside.rename(target)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(target), remedy="give another path") from error
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)


class Pool:
    """The blobs of a layout in the making, each under the hash of what it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)

    def add(self, source: IO[bytes]) -> str:
        """Take a file in; its digest."""
        with self.adding() as (write, finish):
            while piece := source.read(CHUNK_BYTES):
                write(piece)
            return finish()

    @contextmanager
    def adding(self) -> Iterator[tuple[Callable[[bytes], None], Callable[[], str]]]:
        """A function that writes a piece, and one that ends the blob and returns its digest."""
        digest, beside = hashlib.sha256(), self.folder / f".blob-{os.urandom(6).hex()}"
        try:
            with beside.open("wb") as out:

                def write(piece: bytes) -> None:
                    digest.update(piece)
                    out.write(piece)

                def finish() -> str:
                    out.flush()
                    name = f"sha256:{digest.hexdigest()}"
                    beside.rename(blob_path(self.folder, name))
                    return name

                yield write, finish
        finally:
            beside.unlink(missing_ok=True)

    def require(self, digest: str) -> None:
        """Raises ValueError if the blob is not here."""
        if not blob_path(self.folder, digest).is_file():
            raise ValueError(f"the blob {digest} is not in it, or has other content than its name says")

    def read(self, digest: str) -> bytes:
        """A small blob. Raises ValueError if it is not here, or too big to be a document."""
        self.require(digest)
        path = blob_path(self.folder, digest)
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise ValueError(f"the blob {digest} is too big to be a manifest")
        return path.read_bytes()

    def keep_only(self, digests: set[str]) -> None:
        """Delete all other blobs."""
        keep = {blob_path(self.folder, digest) for digest in digests}
        for path in (self.folder / "blobs" / "sha256").iterdir():
            if path not in keep:
                path.unlink()


def _names_in_folder(folder: Path, pool: Pool) -> dict[str, str]:
    files = [path for path in (folder / "index.json", folder / "manifest.json") if path.is_file()]
    files += [path for path in sorted((folder / "blobs" / "sha256").glob("*")) if path.is_file()]
    names = {}
    for path in files:
        with path.open("rb") as source:
            names[path.relative_to(folder).as_posix()] = pool.add(source)
    return names


def _names_in_tar(path: Path, pool: Pool) -> dict[str, str]:
    """What each name in the archive stands for, by its hash; links are followed to names that came before."""
    names: dict[str, str] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                name = os.path.normpath(member.name)
                if member.isreg():
                    content = tar.extractfile(member)
                    names[name] = pool.add(content) if content is not None else ""
                elif member.issym() or member.islnk():
                    start = os.path.dirname(name) if member.issym() else ""
                    links[name] = os.path.normpath(os.path.join(start, member.linkname))
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from error
    for name, target in links.items():
        if target in names:
            names[name] = names[target]
    return names


def _one_descriptor(index: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = [one for one in index["manifests"] if not _is_attestation(one)]
    if len({one["digest"] for one in found}) == 1:
        return found[0]
    raise ValueError(f"it has {len(found)} images ({', '.join(str(one['digest']) for one in found[:5])})")


def _is_attestation(descriptor: dict[str, Any]) -> bool:
    annotations = descriptor.get("annotations") or {}
    return annotations.get("vnd.docker.reference.type") == "attestation-manifest"


def _descriptor_of_saved(saved: list[dict[str, Any]], names: dict[str, str], pool: Pool) -> dict[str, Any]:
    """A manifest of our own for what `docker save` wrote, which depends on nothing but the image's content."""
    if len(saved) != 1:
        raise ValueError(f"it has {len(saved)} images")
    config = names[os.path.normpath(saved[0]["Config"])]
    layers = [names[os.path.normpath(layer)] for layer in saved[0]["Layers"]]
    if json.loads(pool.read(config))["rootfs"]["diff_ids"] != layers:
        raise ValueError("its layers are not those that its configuration names")

    def described(media_type: str, digest: str) -> dict[str, Any]:
        size = blob_path(pool.folder, digest).stat().st_size
        return {"mediaType": media_type, "digest": digest, "size": size}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": described(CONFIG_TYPE, config),
        "layers": [described(LAYER_TYPE, layer) for layer in layers],
    }
    with pool.adding() as (write, finish):
        write(canonical_json(manifest))
        return {"mediaType": MANIFEST_TYPE, "digest": finish()}
