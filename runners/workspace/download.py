"""Files from the network, by their sha256: fetched once, checked always, kept under the home folder.

A download is bounded in bytes and time, is written beside its place and moved into it when its digest is right, and is
checked again whenever it is used. User information of a URL goes only to the URL's own host, over no redirect.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import cast

from runners.eviction import mark_used, size_bytes
from runners.workspace.errors import RepoUnavailable, SourceRefused, WrongDigest
from runners.workspace.location import redacted, url_path, without_userinfo

MAX_DOWNLOAD_BYTES = 512 * 1024 * 1024
MAX_PAGE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_ABANDONED_SECONDS = 3600.0


class NotThere(RepoUnavailable):
    """The server says that there is no such thing."""


@dataclass(frozen=True)
class Web:
    """How to reach servers: `ca_file` over the system's certificates, `proxy` over the environment's."""

    ca_file: str | None = None
    extra_ca_file: str | None = None
    proxy: str | None = None
    timeout_seconds: float = 60.0
    total_seconds: float = 900.0

    def page(self, url: str, headers: Mapping[str, str]) -> tuple[bytes, str, str]:
        """Body, content type and final URL of a page. Raises `RepoUnavailable` (`NotThere`)."""
        if url.startswith("file://"):
            return _local_page(url)
        with self._open(url, headers) as response:
            body = b"".join(self._chunks(response, MAX_PAGE_BYTES, url))
            return body, response.headers.get_content_type(), response.url

    def save(self, url: str, target: Path) -> str:
        """Write what `url` gives to `target`; its sha256. Raises `RepoUnavailable`, `SourceRefused`."""
        digest = hashlib.sha256()
        with target.open("wb") as out, self._open(url, {}) as response:
            for chunk in self._chunks(response, MAX_DOWNLOAD_BYTES, url):
                digest.update(chunk)
                out.write(chunk)
        return digest.hexdigest()

    def _chunks(self, response: HTTPResponse, max_bytes: int, url: str) -> Iterator[bytes]:
        deadline = time.monotonic() + self.total_seconds
        left_bytes = max_bytes
        try:
            while chunk := response.read(_CHUNK_BYTES):
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise SourceRefused(f"gives more than {max_bytes} bytes", where=redacted(url))
                if time.monotonic() > deadline:
                    raise RepoUnavailable(f"{redacted(url)} is too slow")
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise _silent(url, error) from None

    def _open(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        bare, userinfo = without_userinfo(url)
        if not bare.startswith(("http://", "https://")):
            raise SourceRefused("is neither http nor https", where=redacted(url))
        request = urllib.request.Request(bare, headers={"User-Agent": "patchyard", **headers})  # noqa: S310
        if userinfo is not None:
            token = base64.b64encode(userinfo.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            return cast(HTTPResponse, self._opener().open(request, timeout=self.timeout_seconds))
        except urllib.error.HTTPError as error:
            error.close()
            kind = NotThere if error.code in (404, 410) else RepoUnavailable
            raise kind(f"{redacted(url)} answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _silent(url, error) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.extra_ca_file:
            context.load_verify_locations(cafile=self.extra_ca_file)
        proxies = {"http": self.proxy, "https": self.proxy} if self.proxy else None
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            opener.add_handler(handler)
        return opener


def _silent(url: str, error: BaseException) -> RepoUnavailable:
    reason = getattr(error, "reason", None) or error
    return RepoUnavailable(redacted(f"{url} does not answer ({reason})"), retry_after_seconds=5.0)


def _local_page(url: str) -> tuple[bytes, str, str]:
    path = Path(url_path(url))
    if path.is_dir():
        path, url = path / "index.html", url.rstrip("/") + "/index.html"
    try:
        return path.read_bytes(), "text/html", url
    except OSError:
        raise NotThere(f"{redacted(url)} is not there") from None


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Downloads:
    """Downloaded files under one folder, named by their sha256."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, sha256: str, save: Callable[[Path], str], *, where: str) -> Path:
        """The file with that digest: the kept one, or what `save` writes to the path it is given.

        Raises `WrongDigest` when `save` brings something else, and what `save` raises.
        """
        kept = self._folder / sha256
        if kept.exists() and file_sha256(kept) == sha256:
            mark_used(kept)
            return kept
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{sha256}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            check_digest(save(draft), sha256, where=where)
            draft.replace(kept)
        finally:
            draft.unlink(missing_ok=True)
        return kept

    def stored(self) -> Iterator[tuple[str, int, float]]:
        """Each kept file's sha256, its size in bytes, and when it was used last, in seconds since the epoch."""
        for draft in self._folder.glob(".*.*"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
                    draft.unlink()
        for kept in self._folder.glob("[0-9a-f]" * 64):
            with suppress(FileNotFoundError):
                yield kept.name, size_bytes(kept), kept.stat().st_mtime

    def drop(self, sha256: str) -> None:
        """Delete a kept file."""
        (self._folder / sha256).unlink(missing_ok=True)


def check_digest(found: str, promised: str, *, where: str) -> None:
    """Raise `WrongDigest` when they differ."""
    if found != promised:
        remedy = "if you trust what is there now, write that digest"
        raise WrongDigest(f"has sha256 {found}, not {promised}", where=where, remedy=remedy)
