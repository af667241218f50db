"""The lock: which digest a name of an image means, on this machine.

Two files are read. The repository's own says what its authors built and tested with; the one in PATCHYARD_HOME says
what this machine built, which differs as soon as the distribution has newer packages, and comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

import tomlkit
from pydantic import Field, ValidationError
from tomlkit.exceptions import ParseError

from images.build import BuiltImage
from ledger.errors import BadInput
from ledger.records.base import Record
from ledger.records.job import Digest

SHIPPED_LOCK = Path(__file__).parent / "lock.toml"
HEADER = (
    "Which digest an image's name means. Written by `patchyard images build` and `patchyard images lock`.",
    "digest: the OCI manifest's, its identity everywhere; config: its configuration's, an engine's image id.",
)


class LockedImage(Record):
    """One entry. `built` is the day of the build, `packages` how many packages are in it; one that was imported has
    the distribution `imported` and no packages that are known."""

    digest: Digest
    config: Digest
    distribution: str
    architecture: str
    built: date
    packages: int = Field(ge=0)


def home_lock(home: Path) -> Path:
    """The lock of this machine's own builds in PATCHYARD_HOME."""
    return home / "images" / "lock.toml"


def read_lock(path: Path) -> dict[str, LockedImage]:
    """The entries by name; none when there is no such file. Raises BadInput, naming the entry, for a malformed one."""
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except FileNotFoundError:
        return {}
    except ParseError as malformed:
        raise BadInput(f"is not TOML ({malformed})", where=str(path)) from malformed
    entries = {}
    for name, entry in document.get("images", {}).items():
        try:
            entries[name] = LockedImage.model_validate(entry)
        except ValidationError as wrong:
            first = wrong.errors()[0]
            field = ".".join(("images", name, *(str(part) for part in first["loc"])))
            raise BadInput(
                f"{field}: {first['msg']}", where=str(path), remedy="write it again: patchyard images lock"
            ) from wrong
    return entries


def read_locks(paths: Iterable[Path]) -> dict[str, LockedImage]:
    """The entries of several locks; an earlier file's entry hides a later one's of the same name."""
    entries: dict[str, LockedImage] = {}
    for path in paths:
        entries = read_lock(path) | entries
    return entries


def lock_image(path: Path, built: BuiltImage, day: date) -> LockedImage:
    """Write `built` into the lock at `path`, which keeps its other entries and the comments before them."""
    entry = LockedImage(
        digest=built.manifest_digest,
        config=built.config_digest,
        distribution=built.distribution,
        architecture=built.architecture,
        built=day,
        packages=len(built.packages),
    )
    read_lock(path)
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else _new_document()
    images = document.setdefault("images", tomlkit.table(is_super_table=True))
    images[built.name] = tomlkit.item(entry.model_dump())
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(tomlkit.dumps(document), encoding="utf-8")
    beside.replace(path)
    return entry


def _new_document() -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    for line in HEADER:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    return document
