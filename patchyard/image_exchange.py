"""Images in and out: from a layout, an archive, an engine or a registry onto this machine's shelf, and into files.

What is on the shelf has one digest, whichever backend is stocked from it. A registry's image keeps the registry's own
digest; of an engine's image only the content is known, so it is given one that depends on nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path

from images.build import BuiltImage
from images.exchange import check_name, export_layout, image_name, import_image
from images.lock import LockedImage, home_lock, lock_image
from images.oci_layout import Layout, read_layout
from images.recipe import names
from images.registry import Reference, pull
from ledger.errors import BadInput, Unfit
from patchyard.backends import ImagesOnly
from patchyard.image_shelf import engine_of_stack, layouts_of, locked_images
from patchyard.layouts import DRAFT
from patchyard.local.engine import DEFAULT_HOST, answers
from patchyard.room import require_local_room
from patchyard.settings import Settings
from policy.images import PinnedImage, pin_image
from runners.disk import full_disk_told
from runners.eviction import drafted

IMPORTED = "imported"
FROM_ENGINE = "docker:"


def take_in(settings: Settings, source: str, name: str | None) -> tuple[str, LockedImage]:
    """Bring an image onto the shelf and give it a name, `name` or one made of the source's; both come back.

    `source` is a folder or tar with an OCI layout, an archive of `docker save`, HOST/NAME@sha256:…, or `docker:` and a
    name or id in the engine. Raises BadInput, Unfit without an engine, RegistryUnavailable, EngineUnavailable,
    DiskFull.
    """
    reference = Reference.read(source)
    fill: Callable[[Path, str], Layout]
    if source.startswith(FROM_ENGINE):
        wished, fill = source.removeprefix(FROM_ENGINE), _from_engine(settings, source.removeprefix(FROM_ENGINE))
    elif reference is not None:
        wished, fill = reference.name.rpartition("/")[2], lambda draft, called: pull(reference, draft, called)
    else:
        path = Path(source).expanduser()
        if not path.exists():
            remedy = f"give a folder or tar, HOST/NAME@sha256:…, or {FROM_ENGINE}NAME"
            raise BadInput("no such image layout or archive", where=source, remedy=remedy)
        wished, fill = path.name.removesuffix(".gz").removesuffix(".tar"), _from_files(path)
    called = check_name(name) if name else image_name(wished)
    if called in names():
        raise BadInput("is the name of a recipe", where=called, remedy="give another with --name")
    require_local_room(settings)
    folder = layouts_of(settings).folder
    folder.mkdir(parents=True, exist_ok=True)
    with full_disk_told(folder), drafted(folder, DRAFT) as draft:
        layout = _keep(settings, fill(draft, called))
    built = BuiltImage(
        name=called,
        manifest_digest=layout.manifest_digest,
        config_digest=layout.config_digest,
        layout=layout.folder,
        distribution=IMPORTED,
        architecture=layout.architecture,
        packages=(),
    )
    return called, lock_image(home_lock(settings.home), built, date.today())


def give_out(settings: Settings, image: str, target: Path) -> str:
    """Write an image of the shelf to `target`, a folder or, if it is called so, a tar; its digest.

    Raises BadInput for one that is not on the shelf.
    """
    locked = {
        name: PinnedImage(name=name, digest=entry.digest, config=entry.config)
        for name, entry in locked_images(settings).items()
    }
    pinned = pin_image(image, locked)
    with layouts_of(settings).in_use(pinned.digest) as layout:
        if layout is None:
            remedy = f"build it with `patchyard images build {image}`" if image in names() else "import it first"
            raise BadInput(f"the image {pinned.name} was neither built nor imported here", remedy=remedy)
        with full_disk_told(target.parent):
            export_layout(read_layout(layout), target)
    return pinned.digest


def _from_files(path: Path) -> Callable[[Path, str], Layout]:
    return lambda draft, called: import_image(path, draft, called)


def _from_engine(settings: Settings, wanted: str) -> Callable[[Path, str], Layout]:
    """An engine writes what `docker save` does."""

    def fill(draft: Path, called: str) -> Layout:
        address = settings.docker_host or engine_of_stack(settings) or DEFAULT_HOST
        if not address.startswith(("unix://", "tcp://", "http://")):
            address = DEFAULT_HOST
        if not answers(address):
            raise Unfit(
                f"{address}: no container engine answers there", remedy="start it, or set PATCHYARD_DOCKER_HOST"
            )
        from runners.sandbox.docker import DockerBackend

        engine = DockerBackend(address, ImagesOnly())
        archive = draft / "saved.tar"
        try:
            with archive.open("wb") as out:
                for piece in engine.save_image(wanted):
                    out.write(piece)
        finally:
            engine.close()
        try:
            return import_image(archive, draft, called)
        finally:
            archive.unlink()

    return fill


def _keep(settings: Settings, layout: Layout) -> Layout:
    """Move a finished layout to its own name in one step; an equal one that is there already is kept."""
    folder = layouts_of(settings).folder
    with suppress(BadInput):  # one that is damaged is replaced
        if (known := layouts_of(settings).find(layout.manifest_digest)) is not None:
            return read_layout(known)
    place = folder / f"{layout.name}-{layout.manifest_digest.removeprefix('sha256:')[:16]}"
    if place.exists():
        shutil.rmtree(place)
    layout.folder.rename(place)
    return read_layout(place)
