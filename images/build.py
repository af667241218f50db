"""Builds an image from its recipe: packages in, an OCI layout with a reproducible digest out.

Two builds from the same packages give the same digest; the date of the build is in the lock, not in the image.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from images.layer import write_layer
from images.oci_layout import Layout, write_layout
from images.recipe import Recipe
from images.rootfs import check_can_build, install
from images.sources import Sources, machine_sources
from ledger.records.base import Record


class BuiltImage(Record):
    """An image that was just built. `distribution` is like debian-12, `packages` are names, sorted."""

    name: str
    manifest_digest: str
    config_digest: str
    layout: Path
    distribution: str
    architecture: str
    packages: tuple[str, ...]


def build(recipe: Recipe, out: Path, sources: Sources | None = None) -> BuiltImage:
    """Build `recipe` and leave its layout in `out/NAME-DIGEST`; an equal one that is there already is kept.

    Raises Unfit when this machine cannot build, PackagesUnavailable when the packages cannot be had.
    """
    check_can_build()
    sources = sources or machine_sources()
    out.mkdir(parents=True, exist_ok=True)
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as scratch:
        work = Path(scratch)
        work.chmod(0o711)  # mmdebstrap's unshare mode comes here as another user id
        install(recipe, sources, work / "rootfs.tar")
        packages = write_layer(work / "rootfs.tar", recipe.user, work / "layer.tar")
        layout = _keep(write_layout(recipe, work / "layer.tar", architecture, work / "layout"), out)
    return BuiltImage(
        name=recipe.name,
        manifest_digest=layout.manifest_digest,
        config_digest=layout.config_digest,
        layout=layout.folder,
        distribution=sources.distribution,
        architecture=architecture,
        packages=tuple(packages),
    )


def _keep(layout: Layout, out: Path) -> Layout:
    """Move a finished layout to its own name in one step, so that nobody ever sees half of one."""
    digest = layout.manifest_digest.removeprefix("sha256:")
    kept = out / f"{layout.name}-{digest[:16]}"
    if kept.exists():
        shutil.rmtree(layout.folder)
    else:
        layout.folder.rename(kept)
    return layout.model_copy(update={"folder": kept})
