"""The images of an engine: how one is found by its digest, which are ours, and how one of ours is taken away.

What we load bears a name that holds the digest of its manifest. Whatever has no such name is somebody else's, and is
used when it is asked for and never removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from docker import APIClient
from docker.errors import APIError, ImageNotFound

from images.oci_layout import LOCALHOST_LABEL, LOCALHOST_RESOLVED
from runners.sandbox.backend import StoredImage
from runners.sandbox.docker.create import LocalImage

_OURS = re.compile(r"patchyard/([^:/]+):sha256-([0-9a-f]{64})")


def find_image(client: APIClient, digest: str) -> LocalImage | None:
    """By its id; by the name it was loaded under, which holds the digest; by the digest it was pulled by."""
    hexadecimal = digest.removeprefix("sha256:")
    names = [digest]
    names += [image["Id"] for image in client.images(filters={"reference": f"patchyard/*:sha256-{hexadecimal}"})]
    for name in names:
        with suppress(ImageNotFound):
            return _local(client.inspect_image(name))  # type: ignore[no-untyped-call]
    for image in client.images():
        if any(pulled.endswith(f"@{digest}") for pulled in image.get("RepoDigests") or ()):
            return _local(client.inspect_image(image["Id"]))  # type: ignore[no-untyped-call]
    return None


def _local(image: dict[str, Any]) -> LocalImage:
    config = image.get("Config") or {}
    return LocalImage(
        id=image["Id"],
        architecture=image.get("Architecture") or "",
        volumes=tuple(config.get("Volumes") or ()),
        variables=tuple(variable.partition("=")[0] for variable in config.get("Env") or ()),
        knows_localhost=(config.get("Labels") or {}).get(LOCALHOST_LABEL) == LOCALHOST_RESOLVED,
    )


def loaded_images(client: APIClient) -> Iterator[StoredImage]:
    """The images that we loaded, whichever of our homes did. `used_at` is when each was loaded."""
    for image in client.images(filters={"reference": "patchyard/*"}):
        for tag in image.get("RepoTags") or ():
            if (ours := _OURS.fullmatch(tag)) is not None:
                with suppress(ImageNotFound):
                    more = client.inspect_image(image["Id"])  # type: ignore[no-untyped-call]
                    yield StoredImage(
                        digest=f"sha256:{ours[2]}",
                        name=ours[1],
                        size_bytes=int(image.get("Size") or 0),
                        used_at=_seconds((more.get("Metadata") or {}).get("LastTagTime") or ""),
                    )


def remove_image(client: APIClient, digest: str) -> bool:
    """Take our names of an image away, and with the last one the image; False if a container has it."""
    for image in client.images(filters={"reference": f"patchyard/*:{digest.replace(':', '-')}"}):
        for tag in image.get("RepoTags") or ():
            if _OURS.fullmatch(tag) is None or not tag.endswith(digest.removeprefix("sha256:")):
                continue
            try:
                client.remove_image(tag)
            except ImageNotFound:
                continue
            except APIError as refused:
                if refused.status_code != HTTPStatus.CONFLICT:
                    raise
                return False
    return True


def _seconds(moment: str) -> float:
    """Since the epoch, of a time as engines write it, down to nanoseconds; 0 for none."""
    whole = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", moment)
    return max(0.0, datetime.fromisoformat(whole[1]).replace(tzinfo=UTC).timestamp()) if whole else 0.0
