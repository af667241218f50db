"""The distribution's own package sources, as this machine has them configured.

An image is built from the mirrors that its machine uses already, so that no mirror is written into a recipe and a
machine behind a proxy or with a mirror of its own needs no further setting. Sources of third parties, which a machine
may have for other ends, are left out: what runs untrusted code is made of the distribution's packages alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from ledger.errors import Unfit
from ledger.records.base import Record

DISTRIBUTIONS = {"debian": ("main",), "ubuntu": ("main", "universe")}
"""Distributions that images can be built from, with the components to be used."""

APT_SETTINGS = (
    "Acquire::http::Proxy",
    "Acquire::https::Proxy",
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
    "Acquire::Retries",
)
"""Settings of the machine's apt that decide whether it can reach its mirrors."""


class Sources(Record):
    """`distribution` is like debian-12, `stanzas` the text of a deb822 sources file, `settings` lines for apt."""

    distribution: str
    codename: str
    stanzas: str
    settings: tuple[str, ...] = ()


def machine_sources(root: Path = Path("/")) -> Sources:
    """The distribution's sources of this machine. Raises Unfit when there are none that an image can be built from."""
    release = _os_release(root / "etc/os-release")
    distribution = release.get("ID", "")
    codename = release.get("VERSION_CODENAME", "")
    if distribution not in DISTRIBUTIONS or not codename:
        raise Unfit(
            f"sandbox images are built from Debian's or Ubuntu's packages, and this is {distribution or 'neither'}",
            remedy="build on a Debian or Ubuntu machine, or use an image by digest that your engine has already",
        )
    wanted = (codename, f"{codename}-updates", f"{codename}-security")
    stanzas = [
        stanza
        for fields in _configured(root / "etc/apt")
        if (stanza := _of_distribution(fields, wanted, DISTRIBUTIONS[distribution]))
    ]
    if not stanzas:
        raise Unfit(
            f"apt has no source for {codename} {' '.join(DISTRIBUTIONS[distribution])}",
            remedy="add the distribution's own source to /etc/apt/sources.list",
        )
    return Sources(
        distribution=f"{distribution}-{release.get('VERSION_ID', codename)}",
        codename=codename,
        stanzas="\n".join(stanzas),
        settings=_apt_settings() if root == Path("/") else (),
    )


def _os_release(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    pairs = (line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {key: value.strip().strip("\"'") for key, value in pairs}


def _configured(folder: Path) -> list[dict[str, str]]:
    """Every source of the machine as the fields of a deb822 stanza; see sources.list(5) for both forms."""
    found: list[dict[str, str]] = []
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in lists:
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [fields for line in lines if (fields := _one_line(line))]
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [_stanza(paragraph) for paragraph in text.split("\n\n") if paragraph.strip()]
    return found


def _one_line(line: str) -> dict[str, str] | None:
    text = line.split("#", 1)[0].strip()
    if not text.startswith("deb "):
        return None
    fields = {"Types": "deb"}
    rest = text[4:].strip()
    if rest.startswith("["):
        options, _, rest = rest[1:].partition("]")
        for option in options.split():
            key, _, value = option.partition("=")
            if key.lower() == "signed-by":
                fields["Signed-By"] = value.replace(",", " ")
    words = rest.split()
    if len(words) < 3:
        return None
    return fields | {"URIs": words[0], "Suites": words[1], "Components": " ".join(words[2:])}


def _stanza(paragraph: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in paragraph.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t") and key:
            fields[key] += f"\n{line}"
        elif ":" in line:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
    return fields


def _of_distribution(fields: dict[str, str], suites: tuple[str, ...], components: tuple[str, ...]) -> str | None:
    if fields.get("Enabled", "yes").lower() in ("no", "false", "0") or "deb" not in fields.get("Types", "").split():
        return None
    ours = [suite for suite in fields.get("Suites", "").split() if suite in suites]
    parts = [part for part in fields.get("Components", "").split() if part in components]
    if not ours or not parts or fields.get("URIs", "").startswith("cdrom:"):
        return None
    kept = {"Types": "deb", "URIs": fields["URIs"], "Suites": " ".join(ours), "Components": " ".join(parts)}
    if "Signed-By" in fields:
        kept["Signed-By"] = fields["Signed-By"]
    return "".join(f"{key}: {value}\n" for key, value in kept.items())


def _apt_settings() -> tuple[str, ...]:
    listing = subprocess.run(
        ["apt-config", "dump", "--format", '%F "%v";%n', "Acquire"], capture_output=True, text=True, check=False
    )
    return tuple(line for line in listing.stdout.splitlines() if line.split(' "')[0] in APT_SETTINGS)
