"""Addresses of sources: told apart, and shown without the secrets that may stand in them."""

from __future__ import annotations

import re
import urllib.parse

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# git's short form of ssh, `[user@]host:path`: no slash before the colon.
SCP_LIKE = re.compile(r"(?:[A-Za-z0-9._~-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//)\S+\Z")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@\s'\"]*@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s'\"?]*)\?[^\s'\"#]*")


def redacted(text: str) -> str:
    """`text` with the user information and the query of every URL in it masked."""
    return _QUERY.sub(r"\1?***", _USERINFO.sub(r"\1***@", text))


def is_archive_name(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def url_path(url: str) -> str:
    """The decoded path of a URL."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path)


def without_userinfo(url: str) -> tuple[str, str | None]:
    """The URL without its user information, and that ("user:password", decoded), if there was one."""
    parts = urllib.parse.urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), urllib.parse.unquote(userinfo)
