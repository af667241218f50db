"""The report on a folder: every link that leads to no file of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from linkcheck.links import links_of, resolve


def missing_links(folder: Path) -> list[str]:
    """One line for each link that leads nowhere, as `document:line: target`, sorted by document and line."""
    return [line for file in sorted(folder.rglob("*.md")) for line in _missing_in(folder, file)]


def _missing_in(folder: Path, file: Path) -> Iterator[str]:
    document = PurePosixPath(file.relative_to(folder).as_posix())
    for link in links_of(file.read_text(encoding="utf-8")):
        if not (folder / resolve(document, link.target)).exists():
            yield f"{document}:{link.line}: {link.target}"
