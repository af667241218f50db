"""One small client for forges' REST APIs: bounded, JSON only, and exact about what a failure of a write means.

A write that may have reached the forge without its answer reaching us is `OutcomeUnknown`; every other failure says for
certain that nothing was done. Redirects are not followed, so that a token goes nowhere but to the host it belongs to,
and whatever the forge says about its limits closes it for all workers.
"""

from __future__ import annotations

import email.utils
import json
import os
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests
import urllib3

from runners.effects.errors import (
    CredentialRejected,
    EffectRefused,
    NotAForge,
    NotPermitted,
    OutcomeUnknown,
    RateLimited,
    RejectedByRemote,
    RemoteGone,
    RemoteMissing,
    RemoteMoved,
    RemoteUnreachable,
)
from runners.effects.pace import Gate
from runners.effects.remote import checked_api, safe_to_show

MAX_ANSWER_BYTES = 8 * 1024 * 1024
CONNECT_SECONDS = 10.0
_NO_ADVICE_SECONDS = 60.0
_LONGEST_CLOSED_SECONDS = 2 * 3600.0
_LIMIT_WORDS = ("rate limit", "abuse detection", "too many requests")
_BY_STATUS: dict[int, type[EffectRefused]] = {
    401: CredentialRejected,
    403: NotPermitted,
    404: RemoteMissing,
    410: RemoteGone,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A forge's answer: the status and the parsed body (None when there is none)."""

    status: int
    body: Any


class JsonApi:
    """The REST API at one base URL, with the credentials of one host."""

    def __init__(
        self,
        base: str,
        *,
        forge: str,
        gate: Gate,
        headers: Mapping[str, str],
        secrets: Sequence[str] = (),
        timeout_seconds: float = 30.0,
    ) -> None:
        """`forge` is the name under which the gate knows it; `secrets` never show in an error."""
        self._base = checked_api(base)
        self._forge, self._gate, self._secrets, self._timeout = forge, gate, tuple(secrets), timeout_seconds
        self._headers = {"Accept": "application/json", "User-Agent": "patchyard", "Connection": "close", **headers}

    @property
    def base(self) -> str:
        return self._base

    def get(self, path: str, *, missing: bool = False, **query: str | int) -> Answer:
        """Reads. With `missing`, 404 is an answer. Raises EffectRefused, RemoteUnreachable, RateLimited."""
        return self._request("GET", path, query, None, (404,) if missing else ())

    def send(self, method: str, path: str, body: Mapping[str, Any], *, data: Container[int] = ()) -> Answer:
        """Writes, once. `data` are statuses that the caller reads; else as `get`, and OutcomeUnknown."""
        return self._request(method, path, {}, dict(body), data)

    def _request(
        self, method: str, path: str, query: Mapping[str, str | int], body: dict[str, Any] | None, data: Container[int]
    ) -> Answer:
        closed = self._gate.closed_seconds(self._forge)
        if closed > 0:
            raise RateLimited(f"{self._base}: it wants to be left alone", retry_after_seconds=closed)
        where, writes = f"{method} {self._base}{path}", body is not None
        try:
            response, content = self._exchange(method, path, query, body)
        except requests.RequestException as error:
            told = f"{where}: {safe_to_show(_root(error), self._secrets)}"
            if writes and not _before_sending(error):
                raise OutcomeUnknown(told) from None
            raise RemoteUnreachable(told, retry_after_seconds=10.0) from None
        self._heed_limits(response)
        return self._judge(where, response, content, data, writes)

    def _exchange(
        self, method: str, path: str, query: Mapping[str, str | int], body: dict[str, Any] | None
    ) -> tuple[requests.Response, bytes]:
        """One request on a connection of its own, so that no dead one is met; the whole answer within the time."""
        url = self._base + path
        deadline = time.monotonic() + self._timeout
        with requests.Session() as session:
            session.trust_env = False  # no .netrc; proxies and certificates are taken below
            response = session.request(
                method,
                url,
                params=dict(query),
                json=body,
                headers=self._headers,
                timeout=(CONNECT_SECONDS, self._timeout),
                allow_redirects=False,
                stream=True,
                proxies=dict(requests.utils.get_environ_proxies(url)),
                verify=os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True,
            )
            return response, _content(response, deadline)

    def _judge(
        self, where: str, response: requests.Response, content: bytes, data: Container[int], writes: bool
    ) -> Answer:
        status, parsed = response.status_code, _parsed(content)
        if 200 <= status < 300 and (parsed is not None or not content):
            return Answer(status, parsed)
        if status in data and parsed is not None:
            return Answer(status, parsed)
        said = self._said(response, parsed, content)
        if limit := _limit_seconds(response, parsed):
            self._gate.close(self._forge, limit, said)
            raise RateLimited(f"{where}: {said}", retry_after_seconds=limit)
        if status >= 500 or status == 408 or 200 <= status < 300:
            if writes:
                raise OutcomeUnknown(f"{where}: {said}")
            if status < 300:
                raise NotAForge(where, said)
            wait = _number(response.headers.get("retry-after")) or 10.0
            raise RemoteUnreachable(f"{where}: {said}", retry_after_seconds=min(wait, _LONGEST_CLOSED_SECONDS))
        if 300 <= status < 400:
            raise RemoteMoved(where, safe_to_show(response.headers.get("location", ""), self._secrets))
        raise _BY_STATUS.get(status, RejectedByRemote)(where, said)

    def _said(self, response: requests.Response, parsed: Any, content: bytes) -> str:
        """The answer in one line."""
        words = message_of(parsed) or ("a web page, not JSON" if content.lstrip()[:1] == b"<" else "no JSON")
        return safe_to_show(f"HTTP {response.status_code}: {words}", self._secrets)

    def _heed_limits(self, response: requests.Response) -> None:
        """An answer that used up what was left closes the forge until its count starts anew."""
        if response.ok and _header(response, "x-ratelimit-remaining", "ratelimit-remaining") == "0":
            seconds = _until_reset(response)
            if seconds:
                self._gate.close(self._forge, seconds, "the forge's limit of requests is used up")


def _content(response: requests.Response, deadline: float) -> bytes:
    """The whole body, within its bounds of bytes and time. Raises RequestException."""
    content = bytearray()
    try:
        # read1 returns what has come, so that an answer of one byte now and then meets the deadline.
        while part := response.raw.read1(65536, decode_content=True):
            content += part
            if len(content) > MAX_ANSWER_BYTES:
                raise requests.RequestException("the answer is bigger than it may be")
            if time.monotonic() > deadline:
                raise requests.Timeout("the answer takes too long")
    except urllib3.exceptions.HTTPError as error:
        raise requests.RequestException(error) from None
    return bytes(content)


def message_of(parsed: Any) -> str:
    """What a forge's error says, of its several forms."""
    if isinstance(parsed, str):
        return parsed
    if isinstance(parsed, list):
        return "; ".join(filter(None, map(message_of, parsed)))
    if not isinstance(parsed, dict):
        return ""
    found = [parsed.get(name) for name in ("message", "error", "error_description", "errors") if parsed.get(name)]
    if not found:
        found = [f"{name} {message_of(value)}" for name, value in parsed.items() if isinstance(value, list | str)]
    return "; ".join(filter(None, map(message_of, found)))


def _parsed(content: bytes) -> Any:
    """The JSON value, or None where there is none. Deep nesting is not JSON that a forge would send."""
    try:
        return json.loads(content) if content else None
    except (ValueError, RecursionError):
        return None


def _limit_seconds(response: requests.Response, parsed: Any) -> float | None:
    """How long a refusal for too many requests closes the forge; None when it is another answer.

    As GitHub's guide says: `retry-after`, else `x-ratelimit-reset` when nothing remains, else at least a minute.
    """
    if response.status_code not in (403, 429):
        return None
    after = response.headers.get("retry-after")
    spent = _header(response, "x-ratelimit-remaining", "ratelimit-remaining") == "0"
    words = any(word in message_of(parsed).lower() for word in _LIMIT_WORDS)
    if response.status_code == 403 and not (after or spent or words):
        return None
    seconds = _number(after) or _until_date(response, after) or (_until_reset(response) if spent else None)
    return min(max(seconds or _NO_ADVICE_SECONDS, 1.0), _LONGEST_CLOSED_SECONDS)


def _until_reset(response: requests.Response) -> float | None:
    """Seconds until the forge's count starts anew, by the forge's own clock."""
    reset = _number(_header(response, "x-ratelimit-reset", "ratelimit-reset"))
    if reset is None:
        return None
    return min(max(reset - _forges_time(response), 1.0), _LONGEST_CLOSED_SECONDS)


def _until_date(response: requests.Response, text: str | None) -> float | None:
    if not text:
        return None
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - _forges_time(response)
    except ValueError:
        return None


def _forges_time(response: requests.Response) -> float:
    try:
        return email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return time.time()


def _header(response: requests.Response, *names: str) -> str | None:
    return next((response.headers[name].strip() for name in names if name in response.headers), None)


def _number(text: str | None) -> float | None:
    return float(text) if text and text.strip().isdigit() else None


def _before_sending(error: requests.RequestException) -> bool:
    """Whether it is certain that not a byte of the request was sent."""
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.ProxyError | requests.exceptions.InvalidURL):
        return True
    text = _root(error)
    return any(sign in text for sign in ("NewConnectionError", "NameResolutionError", "CERTIFICATE_VERIFY_FAILED"))


def _root(error: BaseException) -> str:
    """The kinds of an error and of what it wraps, and the words of the innermost."""
    kinds, inner = [type(error).__name__], error
    while (below := getattr(inner, "reason", None) or next(iter(inner.args), None)) is not None:
        if not isinstance(below, BaseException):
            break
        kinds.append(type(below).__name__)
        inner = below
    return f"{' of '.join(kinds)}: {inner}"
