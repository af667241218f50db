"""The sandbox images of this machine: built into PATCHYARD_HOME, pinned in a lock, and brought into the engine.

An engine of our own starts empty, and images are built without any engine; so whoever submits to the stack of this
machine first looks whether its engine has what the jobs need, and loads what was built here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path

from images.build import build
from images.lock import LockedImage, home_lock, lock_image, read_locks
from images.recipe import names, shipped_recipe
from ledger.errors import BadInput, Unfit
from patchyard.backends import (
    ImagesOnly,
    address_of,
    choose_backend,
    connect,
    engine_address,
    has_engine,
    passing_home,
)
from patchyard.batchfile.lookups import FoundImage
from patchyard.layouts import Layouts
from patchyard.local.engine import DEFAULT_HOST, answers
from patchyard.local.services import worker_name
from patchyard.local.stack import planned_and_living
from patchyard.room import floor_of
from patchyard.settings import Settings
from runners.disk import require_room

Say = Callable[[str], None]


def locked_images(settings: Settings) -> dict[str, LockedImage]:
    """What each name means here: this machine's own builds come before what the repository's lock says."""
    return read_locks([home_lock(settings.home), settings.images_lock])


def build_image(settings: Settings, name: str, lock: Path | None = None) -> LockedImage:
    """Builds a recipe into PATCHYARD_HOME and pins it in `lock`, this machine's by default.

    Raises BadInput for an unknown recipe, Unfit where nothing can be built, Temporary where packages are out of reach.
    """
    target = home_lock(settings.home)
    built = build(shipped_recipe(name), target.parent)
    return lock_image(lock or target, built, date.today())


def layouts_of(settings: Settings) -> Layouts:
    """The images that were built or imported here."""
    return Layouts(home_lock(settings.home).parent)


def layout_of(settings: Settings, digest: str) -> Path | None:
    """The folder of this image's layout, if it was built here."""
    return layouts_of(settings).find(digest)


def build_missing(settings: Settings, wanted: Iterable[str], say: Say) -> None:
    """Builds those of the wanted names that are recipes and were not built here yet."""
    locked = locked_images(settings)
    for name in sorted(set(wanted) & set(names())):
        if name not in locked or layout_of(settings, locked[name].digest) is None:
            say(f"building the image {name} from this distribution's packages; it takes a minute or two, once")
            build_image(settings, name)


def engine_of_stack(settings: Settings) -> str | None:
    """The address of the engine that the stack of this machine uses, if the stack runs and has one."""
    plan, _, living = planned_and_living(settings)
    if plan is None or not living:
        return None
    worker = next((service for service in plan.services if service.name == worker_name("sandbox")), None)
    if worker is None:
        return None
    told = worker.environment.get
    return engine_address(told("PATCHYARD_SANDBOX_BACKEND", "docker"), settings.home, told("PATCHYARD_DOCKER_HOST"))


def engine_at_hand(settings: Settings) -> str | None:
    """The engine of the running stack, else the one that a stack would have, if it is there already.

    Raises Unfit if the settings name one that is not.
    """
    if (address := engine_of_stack(settings)) is not None:
        return address
    if settings.docker_host is None:
        with passing_home() as home:
            chosen = choose_backend(settings, home=home)
        if chosen.backend == "oci":
            return address_of(chosen, settings)
        return DEFAULT_HOST if answers(DEFAULT_HOST) else None
    if not answers(settings.docker_host):
        raise Unfit(f"{settings.docker_host}: no container engine answers there", remedy="start it, or unset it")
    return settings.docker_host


def images_in(address: str, digests: Iterable[str]) -> set[str]:
    """Those of the digests whose images the engine at `address` has. Raises EngineUnavailable."""
    if not has_engine(address):
        return set()
    engine = connect(address, ImagesOnly())
    try:
        return {digest for digest in digests if engine.has_image(digest)}
    finally:
        engine.close()


def require_images(settings: Settings, images: Iterable[FoundImage]) -> None:
    """Raises BadInput for an image that was not built here and that no engine has that a stack would use.

    An engine of our own that does not run cannot be asked: nothing is said then of what it may have.
    """
    wanted = [image for image in images if layout_of(settings, image.digest) is None]
    if not wanted:
        return
    address = engine_at_hand(settings)
    if address is None and (settings.home / "engine").is_dir():
        return
    there = images_in(address, (image.digest for image in wanted)) if address else set()
    for image in wanted:
        if image.digest not in there:
            raise _nowhere(image)


def _nowhere(image: FoundImage) -> BadInput:
    what = f"the image {image.name} ({image.digest[:19]}…) is not in the engine and was not built here"
    remedy = f"build it with `patchyard images build {image.name}`"
    return BadInput(what, remedy=remedy if image.name in names() else "load it into the engine")


def bring_images(settings: Settings, address: str, images: Iterable[FoundImage], say: Say) -> None:
    """Loads what the engine lacks and was built here. Raises BadInput for what was not, EngineUnavailable."""
    engine = connect(address, ImagesOnly())
    try:
        for image in images:
            if engine.has_image(image.digest):
                continue
            with layouts_of(settings).in_use(image.digest) as layout:
                if layout is None:
                    raise _nowhere(image)
                require_room(engine.folders(), floor_of(settings))
                say(f"loading the image {image.name}")
                engine.load_image(layout)
            layouts_of(settings).mark(image.digest)
    finally:
        engine.close()
