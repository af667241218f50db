"""What an image is made of, as read from a recipe file.

A recipe names packages and a user, never a mirror, a version or a date: two machines with the same packages at hand
make the same image from it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import Field, ValidationError

from ledger.errors import BadInput
from ledger.records.base import Record

RECIPES = Path(__file__).parent / "recipes"


class User(Record):
    """The one user that commands run as; its ids are what the sandbox sets, its passwd entry is for their comfort."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    uid: int = Field(ge=1)
    gid: int = Field(ge=1)
    home: str = Field(pattern=r"^/")


class Recipe(Record):
    """`packages` come on top of the distribution's essential ones; `leave_out` are dpkg path patterns."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    packages: tuple[str, ...] = Field(min_length=1)
    leave_out: tuple[str, ...] = ()
    user: User
    env: dict[str, str] = {}


def read_recipe(path: Path) -> Recipe:
    """The recipe in `path` (TOML). Raises BadInput, naming the file and the field."""
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as missing:
        raise BadInput("no such recipe", where=str(path), remedy=f"known recipes: {', '.join(names())}") from missing
    except tomllib.TOMLDecodeError as malformed:
        raise BadInput(f"is not TOML ({malformed})", where=str(path)) from malformed
    except ValidationError as wrong:
        first = wrong.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{field}: {first['msg']}", where=str(path)) from wrong


def names() -> list[str]:
    """The recipes that come with patchyard."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def shipped_recipe(name: str) -> Recipe:
    """The recipe that comes with patchyard under `name`. Raises BadInput for an unknown one."""
    if name not in names():
        raise BadInput("no such recipe", where=name, remedy=f"known recipes: {', '.join(names())}")
    return read_recipe(RECIPES / f"{name}.toml")
