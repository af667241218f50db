"""Pulls one image by its digest from a registry (OCI distribution specification), without an engine.

Everything that comes is checked against the digest that it was asked for by, from the one that the caller names down to
the layers; so it does not matter who answers. A registry on this machine may speak plain HTTP, all others TLS. Of
logins there is only the anonymous one, which public registries give to everybody.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from images.exchange import MAX_DOCUMENT_BYTES, Pool, adopt
from images.oci_layout import CHUNK_BYTES, INDEX_TYPES, MANIFEST_TYPES, Layout, resolve_manifest
from ledger.errors import BadInput, Temporary
from ledger.records.base import Record

_REFERENCE = re.compile(
    r"(?P<host>(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|localhost|\[[0-9a-fA-F:]+\])(?::\d+)?|[A-Za-z0-9-]+:\d+)/"
    r"(?P<name>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)@(?P<digest>sha256:[0-9a-f]{64})"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_SECONDS = (10.0, 60.0)
_MAX_BLOB_BYTES = 16 * 1024**3


class RegistryUnavailable(Temporary):
    """The registry does not answer, or failed."""


class Reference(Record):
    """HOST/NAME@sha256:…"""

    host: str
    name: str
    digest: str

    @classmethod
    def read(cls, text: str) -> Reference | None:
        """The reference, None for what is none."""
        found = _REFERENCE.fullmatch(text)
        return cls(**found.groupdict()) if found else None

    @property
    def url(self) -> str:
        """Where the registry has it."""
        return f"{'http' if _is_this_machine(self.host) else 'https'}://{self.host}/v2/{self.name}"


def pull(reference: Reference, draft: Path, name: str) -> Layout:
    """The image of this digest as the layout `draft`. Raises RegistryUnavailable, BadInput for one that is not so."""
    where = f"{reference.host}/{reference.name}@{reference.digest}"
    pool = Pool(draft)
    with requests.Session() as session:
        registry = _Registry(session, reference, where)
        try:
            media_type = registry.fetch(pool, reference.digest, "manifests")

            def read(digest: str) -> bytes:
                if digest != reference.digest:
                    registry.fetch(pool, digest, "manifests")
                return pool.read(digest)

            manifest = resolve_manifest(reference.digest, read)
            for one in (manifest["config"], *manifest["layers"]):
                registry.fetch(pool, one["digest"], "blobs")
            return adopt(pool, reference.digest, media_type, name)
        except (KeyError, TypeError, ValueError) as broken:
            raise BadInput(f"is no image that can be used ({broken})", where=where) from broken


class _Registry:
    """One repository of a registry."""

    def __init__(self, session: requests.Session, reference: Reference, where: str) -> None:
        self._session, self._reference, self._where = session, reference, where
        self._token: str | None = None

    def fetch(self, pool: Pool, digest: str, kind: str) -> str:
        """Bring a manifest or blob into the pool, if it is what its digest says; its media type."""
        most = MAX_DOCUMENT_BYTES if kind == "manifests" else _MAX_BLOB_BYTES
        with self._get(f"{self._reference.url}/{kind}/{digest}") as answer, pool.adding() as (write, finish):
            got = 0
            for piece in _pieces(answer):
                got += len(piece)
                if got > most:
                    raise BadInput(f"{digest} is larger than {most} bytes", where=self._where)
                write(piece)
            found = finish()
            if found != digest:
                raise BadInput(f"the registry gave {found} for {digest}", where=self._where, remedy="do not trust it")
            return answer.headers.get("Content-Type", "").partition(";")[0]

    @contextmanager
    def _get(self, url: str) -> Iterator[requests.Response]:
        answer = self._ask(url)
        if answer.status_code == requests.codes.unauthorized and self._token is None:
            answer.close()
            self._token = self._anonymous_token(answer.headers.get("WWW-Authenticate", ""))
            answer = self._ask(url)
        with answer:
            if answer.status_code == requests.codes.not_found:
                raise BadInput("is not in the registry", where=self._where, remedy="correct the name or the digest")
            if answer.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
                remedy = "pull it with an engine that is logged in, and import what `docker save` writes"
                raise BadInput("the registry wants a login", where=self._where, remedy=remedy)
            if not answer.ok:
                raise RegistryUnavailable(f"{self._reference.host} answered {answer.status_code}", 5.0)
            yield answer

    def _ask(self, url: str, **more: object) -> requests.Response:
        headers = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES)), "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        with _our_errors(self._reference.host):
            return self._session.get(url, headers=headers, stream=True, timeout=_SECONDS, **more)  # type: ignore[arg-type]

    def _anonymous_token(self, challenge: str) -> str:
        asked = dict(_CHALLENGE.findall(challenge))
        realm = asked.pop("realm", "")
        if not realm.startswith(("https://", "http://127.", "http://localhost")):
            return ""
        with self._ask(realm, params=asked) as answer, _our_errors(self._reference.host):
            given = answer.json() if answer.ok else {}
        return str(given.get("token") or given.get("access_token") or "")


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    with _our_errors(answer.url):
        yield from answer.iter_content(CHUNK_BYTES)


@contextmanager
def _our_errors(who: str) -> Iterator[None]:
    try:
        yield
    except requests.RequestException as lost:
        raise RegistryUnavailable(f"{who} does not answer ({type(lost).__name__})", 5.0) from lost


def _is_this_machine(host: str) -> bool:
    bare = host.rpartition(":")[0] if re.search(r":\d+\Z", host) else host
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare.strip("[]")).is_loopback
    except ValueError:
        return False
