"""What an image reference may be: a locked name or a digest. A tag can be moved, so a tag alone is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ledger.errors import BadInput
from ledger.records.base import Record
from ledger.records.job import Digest

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[\w][\w.-]{0,127})?"
)


class PinnedImage(Record):
    """An image by `digest`, its OCI manifest's; `name` is how people call it, `config` its configuration's digest."""

    name: str
    digest: Digest
    config: Digest | None = None


def pin_image(reference: str, locked: Mapping[str, PinnedImage], *, where: str = "image") -> PinnedImage:
    """The image that `reference` means: a name in `locked`, `name@sha256:…` or `sha256:…`.

    Raises BadInput for anything else, with the line that pins it.
    """
    if reference in locked:
        return locked[reference]
    name, at, digest = reference.rpartition("@")
    if _DIGEST.fullmatch(digest) and (_NAME.fullmatch(name) if at else not name):
        known = next((image for image in locked.values() if image.digest == digest), None)
        return PinnedImage(
            name=name or (known.name if known else digest), digest=digest, config=known.config if known else None
        )
    if at or digest.startswith("sha256:") or not _NAME.fullmatch(reference):
        raise BadInput(
            f"{reference!r} is no image reference",
            where=where,
            remedy="write a name of the images lock, name@sha256:… or sha256:… (64 hexadecimal digits)",
        )
    raise BadInput(
        f"{reference} is not pinned, and a tag can be moved", where=where, remedy=_how_to_pin(reference, locked)
    )


def _how_to_pin(reference: str, locked: Mapping[str, PinnedImage]) -> str:
    names = f" or a locked name ({', '.join(sorted(locked))})" if locked else ""
    shown = "docker image inspect --format '{{index .RepoDigests 0}}' " + reference
    return f"write the digest that `{shown}` prints{names}"
