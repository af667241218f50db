"""The settings: from the environment (`PATCHYARD_*`), else from `patchyard.toml` in the working folder, else a default.

Each value's source is known, so that `patchyard doctor` can say why something is as it is, and a bad value is one
line that names the variable or the file and key. Secrets are masked wherever settings are shown.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ledger.errors import BadInput
from policy.network import Ceiling

PREFIX = "PATCHYARD_"
FILE = "patchyard.toml"
DOCKER_HOST = "DOCKER_HOST"  # the engine's own variable, taken where none of ours says otherwise
# Variables that are no settings: of faults and their traces, of the supervisor's own, of tests and measurements, and
# what a cluster tells its pods of services that are called patchyard.
_ANOTHERS = re.compile(
    r"(DEBUG|CRASH|CRASH_POINTS|STACK|SERVICE|READY_FILE|IMAGES_CACHE|(TEST|BENCH|CHAOS)_\w+"
    r"|(\w+_)?SERVICE_(HOST|PORT\w*)|(\w+_)?PORT(_\d+_\w+)?)$"
)
_DATABASE_SCHEMES = ("postgresql", "postgres")
_BROKER_SCHEMES = ("redis", "rediss", "unix")


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))


def _split(value: object) -> object:
    """A text is a list with commas or spaces between; TOML has lists of its own."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
LocalPath = Annotated[Path, AfterValidator(_absolute)]


class Settings(BaseSettings):
    """All settings; the names are the public contract's, in lower case and without the prefix."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        toml_file=FILE,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    home: LocalPath = Field(Path(".patchyard"), description="folder of the local stack's state")
    database_url: str | None = Field(None, description="a PostgreSQL of your own; without it one is started")
    broker_url: str | None = Field(None, description="a Redis or Valkey of your own; without it one is started")
    docker_host: str | None = Field(
        default_factory=lambda: os.environ.get(DOCKER_HOST) or None,
        description="the container engine's address; without it DOCKER_HOST, else what is found here",
    )
    sandbox_backend: Literal["auto", "docker", "oci", "kubernetes"] = Field("auto", description="what runs sandboxes")
    sandbox_runtime: str | None = Field(None, description="the OCI runtime by its name in the engine, such as runsc")
    sandbox_slots: int = Field(
        default_factory=lambda: max(2, os.cpu_count() or 1),
        ge=1,
        le=1000,
        description="sandboxes at once on this machine",
    )
    armed: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="sandboxes started ahead on this machine, 0 for none; else as many as sandbox_slots",
    )
    decide_slots: int = Field(8, ge=1, le=1000, description="model calls at once on this machine")
    publish_slots: int = Field(2, ge=1, le=1000, description="publications at once on this machine")
    probe_ttl_seconds: float = Field(
        86_400, ge=1, le=2_592_000, description="how long a probe that found nothing amiss allows sandboxes"
    )
    network_allow: Texts = Field(
        (),
        description="what jobs may ask for of a network, as cdn.test:443 *.example.org:443; else they have none",
    )
    network_private: Texts = Field(
        (), description="ranges of addresses, as 10.1.2.0/24, that jobs with a network may reach besides public ones"
    )
    lease_seconds: float = Field(30, ge=1, le=86_400, description="how long a claim lasts without a sign of life")
    mirrors_max_gb: float = Field(
        20, ge=0, le=1e6, description="what mirrors of repositories may take of this machine's disk"
    )
    images_max_gb: float = Field(20, ge=0, le=1e6, description="what sandbox images may take of this machine's disk")
    disk_min_free_gb: float = Field(
        1, ge=0, le=1e6, description="with less than this free on the disk nothing is begun"
    )
    disk_min_free_inodes: int = Field(
        10_000, ge=0, le=10**9, description="with room for fewer files than this nothing is begun"
    )
    credentials: LocalPath | None = Field(
        None, description="file of the publish worker's tokens and keys, a table a host (TOML, mode 0600)"
    )
    images_lock: LocalPath = Field(
        Path(__file__).resolve().parent.parent / "images" / "lock.toml",
        description="the lock file that names images by digest",
    )
    api_token: SecretStr | None = Field(None, description="the bearer token of the HTTP API")
    otlp_endpoint: str | None = Field(None, description="where traces go, if anywhere")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what the services log")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @field_validator("database_url")
    @classmethod
    def _a_postgresql_url(cls, value: str | None) -> str | None:
        return _with_scheme(value, _DATABASE_SCHEMES)

    @field_validator("broker_url")
    @classmethod
    def _a_redis_url(cls, value: str | None) -> str | None:
        return _with_scheme(value, _BROKER_SCHEMES)

    @field_validator("network_allow")
    @classmethod
    def _places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(str, _as_ceiling(value, ()).allow))

    @field_validator("network_private")
    @classmethod
    def _ranges(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(str, _as_ceiling((), value).private))

    @property
    def network(self) -> Ceiling:
        """What jobs may have of a network."""
        return Ceiling.read(self.network_allow, self.network_private)

    def environment(self, *names: str) -> dict[str, str]:
        """The settings `names` as variables, for a service that gets these and no others."""
        values = {name: getattr(self, name) for name in names}
        return {PREFIX + name.upper(): _plain(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class SettingShown:
    """One setting for people: its value with secrets masked, and where it came from."""

    name: str
    value: str
    source: str
    purpose: str


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process; `overrides` win over every source. Raises `BadInput` with one line."""
    try:
        return Settings(**overrides)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"not TOML: {error}", where=FILE, remedy="mend the file or remove it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=FILE, remedy="mend the file or remove it") from None
    except ValidationError as error:
        raise _one_line(error, set(overrides)) from None


def unknown_variables() -> dict[str, str]:
    """The variables of the environment that look like settings and are none, each with what to do about it."""
    known = [name.upper() for name in Settings.model_fields]
    unknown = {}
    for variable in sorted(os.environ):
        prefix, name = variable[: len(PREFIX)].upper(), variable[len(PREFIX) :].upper()
        if prefix == PREFIX and os.environ[variable] and name not in known and not _ANOTHERS.match(name):
            near = difflib.get_close_matches(name, known, n=1)
            unknown[variable] = f"did you mean {PREFIX}{near[0]}?" if near else "`patchyard doctor` lists the settings"
    return unknown


def show_settings(settings: Settings) -> list[SettingShown]:
    """Every setting with its source, secrets masked."""
    in_file = _file_keys()
    shown = []
    for name, field in Settings.model_fields.items():
        source = _variable_set(name) or (f"{FILE}: {name}" if name in in_file else "default")
        if name == "docker_host" and source == "default" and os.environ.get(DOCKER_HOST):
            source = DOCKER_HOST
        value = masked(name, getattr(settings, name))
        shown.append(SettingShown(PREFIX + name.upper(), value, source, field.description or ""))
    return shown


def masked(name: str, value: object) -> str:
    """A value as it may be shown: no password of a URL, nothing of a token."""
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return "********"
    text = _plain(value)
    return masked_url(text) if name.endswith(("_url", "_host", "_endpoint")) else text


def masked_url(url: str) -> str:
    """`url` without its password, wherever URLs of PostgreSQL and Redis may carry one."""
    url = re.sub(r"(://[^:/@]*:).*@", r"\1********@", url)
    return re.sub(r"([?&](?:password|sslpassword|token)=)[^&]*", r"\1********", url, flags=re.IGNORECASE)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _as_ceiling(allow: tuple[str, ...], private: tuple[str, ...]) -> Ceiling:
    try:
        return Ceiling.read(allow, private)
    except BadInput as wrong:
        raise ValueError(f"{wrong.what}: {wrong.remedy}") from None


def _with_scheme(value: str | None, schemes: tuple[str, ...]) -> str | None:
    if value is not None and value.partition("://")[0] not in schemes:
        raise ValueError(f"should start with {schemes[0]}://")
    if value is not None and (" " in value or _bad_port(value)):
        raise ValueError("is not a URL: write spaces as %20, and the port as a number up to 65535")
    return value


def _bad_port(url: str) -> bool:
    try:
        # PostgreSQL takes several hosts with a port each; those are for its own library to judge.
        return "," not in url and urlsplit(url).port == 0
    except ValueError:
        return True


def _variable_set(name: str) -> str | None:
    """The variable that sets `name`. Names are matched without regard to case, as the loader does."""
    given = {key.upper(): key for key, value in os.environ.items() if value}
    return given.get(PREFIX + name.upper())


def _file_keys() -> set[str]:
    path = Path(FILE)
    return set(tomllib.loads(path.read_text(encoding="utf-8"))) if path.is_file() else set()


def _one_line(error: ValidationError, overridden: set[str]) -> BadInput:
    """The first problem as `where: what; remedy`; the rest shows once this one is mended."""
    problem = error.errors(include_url=False, include_context=False)[0]
    key = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Settings.model_fields, n=1)
        remedy = f"did you mean {near[0]}?" if near else "known: " + ", ".join(Settings.model_fields)
        return BadInput("unknown setting", where=f"{FILE}: {key}", remedy=remedy)
    variable = None if key in overridden else _variable_set(key)
    what = problem["msg"].removeprefix("Value error, ")
    what = what[0].lower() + what[1:]
    if key != "api_token":
        what += f" (it is {masked(key, problem['input'])!r})"
    if variable:
        return BadInput(what, where=variable, remedy="set it right or unset it")
    where = key if key in overridden else f"{FILE}: {key}"
    return BadInput(what, where=where, remedy="mend it")
