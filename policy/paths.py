"""Which paths a list of patterns means: one meaning for `writable`, `protected` and the globs that tools take.

Patterns are lines of a .gitignore at the repository's root: `tests/**` is everything below `tests`, `*.md` any Markdown
file, the last that matches counts and `!x` takes back. They become regular expressions, so a pattern that a model
proposes is checked first: every further `*` in a name multiplies the time of a match by the name's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pathspec import GitIgnoreSpec

from ledger.errors import BadInput

MAX_STARS = 3


@lru_cache(maxsize=256)
def _spec(globs: tuple[str, ...]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(globs)
    except (ValueError, re.error) as wrong:
        raise BadInput(f"not a pattern: {wrong}", remedy="write it as a line of a .gitignore") from None


def matches(globs: Sequence[str], path: str) -> bool:
    """Whether `globs` mean `path`. Raises BadInput for what is no pattern."""
    return bool(matching(globs, (path,)))


def matching(globs: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Those of `paths` that `globs` mean, in their order. Raises BadInput for what is no pattern."""
    if not globs:
        return []
    spec = _spec(tuple(globs))
    # A newline in a name is a character like any other, which regular expressions do not think.
    return [path for path in paths if spec.match_file(path.replace("\n", "\x01"))]


def verdict_on(globs: Sequence[str], path: str) -> bool | None:
    """What the last of `globs` that matches `path` says of it: True, False where it begins with `!`, None if none does.

    Raises BadInput for what is no pattern.
    """
    return _spec(tuple(globs)).check_file(path.replace("\n", "\x01")).include if globs else None


def check_glob(glob: str) -> None:
    """Raise BadInput if `glob` is no pattern, or one whose match can take long."""
    names = glob.split("/")
    if names.count("**") > MAX_STARS or any(name != "**" and name.count("*") > MAX_STARS for name in names):
        raise BadInput(f"more than {MAX_STARS} stars between slashes", remedy="write a simpler pattern")
    _spec((glob,))
