"""Links of one document: where they stand, and which file they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_OTHER_SITE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Link:
    """A link as it is written, and the line it is on, counted from 1."""

    target: str
    line: int


def links_of(text: str) -> Iterator[Link]:
    """The links of `text` to files; links to other sites and to anchors of the same document are left out."""
    for number, line in enumerate(text.splitlines(), start=1):
        for target in _LINK.findall(line):
            if not _OTHER_SITE.match(target) and not target.startswith("#"):
                yield Link(target, number)


def resolve(document: PurePosixPath, target: str) -> PurePosixPath:
    """The file that `target` means in `document`; both paths count from the folder that is checked."""
    path = target.partition("#")[0]
    if path.startswith("/"):
        return _normal(PurePosixPath(path.lstrip("/")))
    return _normal(PurePosixPath(path))


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
