"""Which paths a list of patterns means: one meaning for `writable`, `protected` and the globs that tools take.

Patterns have gitignore's syntax and are rooted at the repository: `tests/**` is everything below `tests`, `*.md` any
Markdown file, `!x` takes back what an earlier pattern took.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from pathspec import GitIgnoreSpec

from ledger.errors import BadInput


@lru_cache(maxsize=256)
def _spec(globs: tuple[str, ...]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(globs)
    except ValueError as wrong:
        raise BadInput(f"not a pattern: {wrong}", remedy="use gitignore's syntax, e.g. tests/**") from None


def matches(globs: Sequence[str], path: str) -> bool:
    """Whether one of `globs` means `path`. Raises BadInput for what is no pattern."""
    return bool(globs) and _spec(tuple(globs)).match_file(path)


def matching(globs: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Those of `paths` that `globs` mean, in their order. Raises BadInput for what is no pattern."""
    if not globs:
        return []
    spec = _spec(tuple(globs))
    return [path for path in paths if spec.match_file(path)]
