"""The source distribution of a published package, found where pip would look and taken by its sha256.

Which index, which certificates, which proxy: pip's own option parser is asked, so that every way to configure pip
counts here, and no registry is named in this code. The index is read by the simple API in its JSON and HTML forms
(PEP 691, PEP 503). Nothing of the package is run: `pip download` would, to prepare metadata.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

from ledger.errors import Unfit
from runners.workspace.download import Downloads, NotThere, Web, check_digest, file_sha256
from runners.workspace.errors import RepositoryMissing, RepoUnavailable
from runners.workspace.location import redacted, url_path

REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)\Z")
_SDIST_SUFFIXES = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_ASK_PIP = """
import json
from pip._internal.commands import create_command
from pip._vendor import certifi
options, _ = create_command("download").parse_args([])
indexes = [] if options.no_index else [options.index_url, *options.extra_index_urls]
print(json.dumps({"indexes": indexes, "find_links": options.find_links, "cert": options.cert,
                  "proxy": options.proxy, "extra_cert": certifi.where()}))
"""


@dataclass(frozen=True)
class PipSettings:
    """What pip would do here, after its configuration files, environment and defaults."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    cert: str | None
    proxy: str | None
    extra_cert: str | None


@dataclass(frozen=True)
class _File:
    name: str
    url: str
    sha256: str | None


def ask_pip(python: str = sys.executable) -> PipSettings:
    """The settings of the pip of `python`. Raises `Unfit` when it has none that answers."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK_PIP], capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return PipSettings(
            tuple(told["indexes"]), tuple(told["find_links"]), told["cert"], told["proxy"], told["extra_cert"]
        )
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise Unfit(
            f"pip of {python} does not say which package index it uses ({type(error).__name__})",
            remedy="install pip there, or check its configuration with `pip config list`",
        ) from error


class PackageIndex:
    """The indexes and folders that pip would search."""

    def __init__(self, downloads: Downloads, settings: PipSettings | None = None) -> None:
        """`settings` None asks pip when they are first needed."""
        self._downloads, self._given = downloads, settings

    def sdist(self, name: str, version: str, sha256: str) -> Path:
        """The file of the source distribution of `name` `version` with that sha256.

        Raises `RepositoryMissing`, `WrongDigest`, `RepoUnavailable`, `Unfit`.
        """
        where = f"pypi:{name}=={version}"

        def save(target: Path) -> str:
            return self._save(self._choose(name, version, sha256, where), target)

        return self._downloads.get(sha256, save, where=where)

    def _choose(self, name: str, version: str, sha256: str, where: str) -> _File:
        """The first file with the digest, or else one of the right name whose digest nobody tells."""
        wanted = _normal(f"{name}-{version}")
        unsure: _File | None = None
        other_digest: str | None = None
        silent: RepoUnavailable | None = None
        for files in self._pages(name):
            if isinstance(files, RepoUnavailable):
                silent = files
                continue
            for file in files:
                if file.sha256 == sha256:
                    return file
                if _normal(_stem(file.name)) == wanted:
                    unsure = unsure or (file if file.sha256 is None else None)
                    other_digest = other_digest or file.sha256
        if unsure is not None:
            return unsure
        if other_digest is not None:
            check_digest(other_digest, sha256, where=where)
        if silent is not None:
            raise silent
        remedy = "check name and version; only source distributions count"
        raise RepositoryMissing("no index that pip uses here has its source distribution", where=where, remedy=remedy)

    def _pages(self, name: str) -> Iterator[list[_File] | RepoUnavailable]:
        for place in self._settings.find_links:
            yield self._page(place)
        for index in self._settings.indexes:
            yield self._page(f"{index.rstrip('/')}/{_normal(name)}/")

    def _page(self, place: str) -> list[_File] | RepoUnavailable:
        folder = Path(url_path(place) if place.startswith("file://") else place)
        if folder.is_dir() and not (folder / "index.html").exists():
            found = [_File(path.name, path.as_uri(), None) for path in sorted(folder.resolve().iterdir())]
        else:
            try:
                found = self._listed(place if "://" in place else folder.absolute().as_uri())
            except NotThere:
                return []
            except RepoUnavailable as error:
                return error
        return [file for file in found if file.name.lower().endswith(_SDIST_SUFFIXES)]

    def _listed(self, url: str) -> list[_File]:
        body, content_type, final_url = self._web.page(url, {"Accept": _ACCEPT})
        # The user information of the index goes along to files on the same host, as pip does it.
        base = _with_userinfo(final_url, url)
        try:
            if content_type.endswith("json"):
                return [_json_file(file, base) for file in json.loads(body)["files"]]
            page = _Anchors(base)
            page.feed(body.decode("utf-8", "replace"))
            return page.files
        except (ValueError, LookupError, TypeError) as error:
            raise RepoUnavailable(f"{redacted(url)} is no page of a package index ({error})") from error

    def _save(self, file: _File, target: Path) -> str:
        if file.url.startswith("file://"):
            shutil.copyfile(url_path(file.url), target)
            return file_sha256(target)
        return self._web.save(file.url, target)

    @cached_property
    def _settings(self) -> PipSettings:
        return self._given or ask_pip()

    @cached_property
    def _web(self) -> Web:
        return Web(self._settings.cert or None, self._settings.extra_cert, self._settings.proxy or None)


class _Anchors(HTMLParser):
    """The links of a PEP 503 page."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.files: list[_File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag == "base":
            self._base = urllib.parse.urljoin(self._base, href)
        elif href and tag == "a":
            url, _, fragment = urllib.parse.urljoin(self._base, href).partition("#")
            digest = urllib.parse.parse_qs(fragment).get("sha256", [None])[0]
            self.files.append(_File(url_path(url).rsplit("/", 1)[-1], url, digest.lower() if digest else None))


def _json_file(file: dict[str, object], base: str) -> _File:
    hashes = file["hashes"]
    digest = hashes.get("sha256") if isinstance(hashes, dict) else None
    return _File(str(file["filename"]), urllib.parse.urljoin(base, str(file["url"])), str(digest) if digest else None)


def _with_userinfo(final_url: str, asked_url: str) -> str:
    asked, final = urllib.parse.urlsplit(asked_url), urllib.parse.urlsplit(final_url)
    bare = asked.netloc.rpartition("@")[2]
    if final.netloc == bare and asked.scheme == final.scheme:
        return urllib.parse.urlunsplit(final._replace(netloc=asked.netloc))
    return final_url


def _normal(name: str) -> str:
    """PEP 503's normal form, which also makes spellings of one version meet."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _stem(file_name: str) -> str:
    lower = file_name.lower()
    return next((file_name[: -len(suffix)] for suffix in _SDIST_SUFFIXES if lower.endswith(suffix)), "")
