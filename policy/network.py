"""What a job's network may lead to: hosts and ports that somebody allowed, at addresses that are the public's.

There are two questions, and each is asked of what a text means and not of how it is written. Whether a host and port
are allowed: both sides have one canonical form (lower case, A-labels, no trailing dot, an address in its shortest
form), and an address in decimal, octal, hexadecimal or short notation is that address. And whether an address may be
connected to: it is refused unless it is known to be public, IPv4 inside of IPv6 included, so that a name which is
allowed and resolves to something of ours leads nowhere.

See RFC 1123 for names, RFC 5890 for A-labels, the URL standard's "IPv4 parser" for notations of addresses, and IANA's
registries of special-purpose addresses. Python's own `is_global` is not asked: its answer changed between releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Self

import idna

from ledger.errors import BadInput

Address = IPv4Address | IPv6Address
Range = IPv4Network | IPv6Network

MAX_NAME = 253
MAX_PORT = 65_535
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_IN_BRACKETS = re.compile(r"\[([^\]]*)\](.*)", re.DOTALL)
_EXAMPLE = "write it as cdn.test:443, *.example.org:443 or [2001:4860:4860::8888]:443"

# -- hosts and ports --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A host, in its canonical form, and a port."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str, *, port: int | None = None) -> Self:
        """`HOST:PORT`, or HOST alone where a `port` is given. Raises BadInput for what is no host and port."""
        host, stated = _split(text)
        if not stated and port is not None:
            return cls(read_host(host), port)
        return cls(read_host(host), _read_port(stated, text))

    @property
    def address(self) -> Address | None:
        """The address that the host is, None for a name."""
        return _canonical_address(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Pattern:
    """One host and port that may be reached, or with `below` every name below that host, but not itself."""

    place: Place
    below: bool = False

    @classmethod
    def read(cls, text: str) -> Self:
        """`HOST:PORT` or `*.NAME:PORT`. Raises BadInput for what is neither, and for a `*` that stands for too much."""
        rest = text.removeprefix("*.")
        if "*" in rest:
            raise BadInput("a * stands for whole names in front of one", remedy=_EXAMPLE)
        pattern = cls(Place.read(rest), below=rest != text)
        if pattern.below and pattern.place.address is not None:
            raise BadInput("there are no names below an address", remedy=_EXAMPLE)
        if pattern.below and "." not in pattern.place.host:
            raise BadInput("it stands for all of a top-level domain", remedy="name one domain, as *.example.org:443")
        return pattern

    def allows(self, place: Place) -> bool:
        """Whether this very host and port may be reached."""
        if place.port != self.place.port:
            return False
        return place.host.endswith(f".{self.place.host}") if self.below else place.host == self.place.host

    def covers(self, other: Pattern) -> bool:
        """Whether all that `other` allows is allowed by this one."""
        return self == other or (self.below >= other.below and self.allows(other.place))

    def __str__(self) -> str:
        return f"*.{self.place}" if self.below else str(self.place)


def read_host(text: str) -> str:
    """A host in its canonical form: a name in lower case and A-labels without a trailing dot, or an address.

    Raises BadInput for what is no host: user information, a zone, percent signs, an address that is none.
    """
    if ":" in text:
        return _read_ipv6(text)
    name = text.lower() if text.isascii() else _to_ascii(text)
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return str(_read_ipv4(labels))
    if not name or len(name) > MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise BadInput("it is no name of a host", remedy=_EXAMPLE)
    for label in labels:
        if label.startswith("xn--"):
            _check_a_label(label)
    return name


def _split(text: str) -> tuple[str, str]:
    """Host and port as they are written; an address in brackets comes out of them."""
    if bracketed := _IN_BRACKETS.fullmatch(text):
        host, rest = bracketed[1], bracketed[2]
        if ":" not in host or (rest and not rest.startswith(":")):
            raise BadInput("only an IPv6 address is put in brackets, and a port follows", remedy=_EXAMPLE)
        return host, rest[1:]
    host, _, port = text.partition(":")
    if ":" in port:
        raise BadInput("it has several colons", remedy="put an IPv6 address in brackets, as [2001:db8::1]:443")
    return host, port


def _read_port(text: str, whole: str) -> int:
    if not text:
        raise BadInput("it has no port", remedy=_EXAMPLE)
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= MAX_PORT:
        raise BadInput(f"its port is no number from 1 to {MAX_PORT}", remedy=_EXAMPLE)
    return int(text)


def _to_ascii(text: str) -> str:
    try:
        return idna.encode(text, uts46=True, std3_rules=True).decode()
    except (idna.IDNAError, UnicodeError) as wrong:
        raise BadInput("it is no name of a host", remedy="write an international name in its xn-- form") from wrong


def _check_a_label(label: str) -> None:
    try:
        idna.ulabel(label)
    except (idna.IDNAError, UnicodeError) as wrong:
        raise BadInput("it is no name of a host", remedy="its xn-- part stands for nothing") from wrong


def _read_ipv4(labels: Sequence[str]) -> IPv4Address:
    """The address that one to four numbers mean, each decimal, octal (0…) or hexadecimal (0x…), the last of which fills
    what is left of it."""
    *leading, last = [_read_number(label) for label in labels]
    if len(leading) > 3 or any(number > 255 for number in leading) or last >= 256 ** (4 - len(leading)):
        raise BadInput("it looks like an address and is none", remedy=_EXAMPLE)
    return IPv4Address(sum(number << (24 - 8 * at) for at, number in enumerate(leading)) + last)


def _read_number(label: str) -> int:
    try:
        if not _NUMBER.fullmatch(label):
            raise ValueError
        if label[:2] in ("0x", "0X"):
            return int(label[2:] or "0", 16)
        return int(label, 8 if len(label) > 1 and label[0] == "0" else 10)
    except ValueError as wrong:
        raise BadInput("it looks like an address and is none", remedy=_EXAMPLE) from wrong


def _read_ipv6(text: str) -> str:
    """The address, which comes out as IPv4 where it is one in IPv6's clothes."""
    if "%" in text:
        raise BadInput("an address with a zone is somebody's neighbour", remedy="leave the zone out")
    try:
        address = IPv6Address(text)
    except AddressValueError as wrong:
        raise BadInput("it looks like an address and is none", remedy=_EXAMPLE) from wrong
    return str(address.ipv4_mapped or address)


def _canonical_address(host: str) -> Address | None:
    if ":" in host:
        return IPv6Address(host)
    return IPv4Address(host) if _NUMBER.fullmatch(host.rpartition(".")[2]) else None


# -- addresses --------------------------------------------------------------------------------------------------------

_SPECIAL: tuple[tuple[Range, str], ...] = tuple(
    (ip_network(written), word)
    for word, ranges in {
        "unspecified": "0.0.0.0/8 ::/128",
        "loopback": "127.0.0.0/8 ::1/128",
        "link-local": "169.254.0.0/16 fe80::/10",
        "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
        "shared": "100.64.0.0/10",
        "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
        "benchmark": "198.18.0.0/15",
        "protocol": "192.0.0.0/24 192.88.99.0/24 2001::/23 2002::/16 64:ff9b:1::/48",
        "multicast": "224.0.0.0/4 ff00::/8",
        "reserved": "240.0.0.0/4",
    }.items()
    for written in ranges.split()
)
"""`protocol` holds, with others, what carries IPv4 inside of IPv6 and is not looked into: 6to4, Teredo and the NAT64
prefix of a site."""
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_METADATA = (
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
)  # fmt: skip
"""Where clouds hand out credentials. One of them (Azure's) is among the public ones."""
_NEVER = ("metadata", "link-local", "multicast", "unspecified")
"""What no setting permits."""
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


def class_of(address: Address) -> str | None:
    """What kind of address it is, None for one of the public internet."""
    plain = meant(address)
    if str(plain) in _METADATA:
        return "metadata"
    for ranged, word in _SPECIAL:
        if plain in ranged:
            return word
    if isinstance(plain, IPv4Address):
        return None
    if plain in _NAT64:
        return class_of(IPv4Address(int(plain) & 0xFFFF_FFFF))
    if plain not in _PUBLIC_IPV6:
        return "reserved"
    if int(plain) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return class_of(IPv4Address(int(plain) & 0xFFFF_FFFF))
    return None


def why_refused(address: Address, private: Iterable[Range] = ()) -> str | None:
    """Why nobody may connect to this address, in a word, or None. `private` are ranges that a cluster permits."""
    word = class_of(address)
    if word is None or (word not in _NEVER and any(meant(address) in permitted for permitted in private)):
        return None
    return word


def meant(address: Address) -> Address:
    """The address that it stands for: IPv4 where it is that in IPv6's clothes."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


# -- what a cluster permits -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ceiling:
    """What jobs of a cluster may ask for, and the ranges of addresses that they may reach besides public ones."""

    allow: tuple[Pattern, ...] = ()
    private: tuple[Range, ...] = ()

    @classmethod
    def read(cls, allow: Iterable[str], private: Iterable[str] = ()) -> Self:
        """From texts. Raises BadInput that quotes the first that is none."""
        patterns = []
        for text in allow:
            try:
                patterns.append(Pattern.read(text))
            except BadInput as wrong:
                raise BadInput(f"{text!r}: {wrong.what}", remedy=wrong.remedy) from None
        return cls(tuple(patterns), tuple(map(_read_range, private)))

    def permit(self, text: str) -> str:
        """What a job asks for, in its canonical form. Raises BadInput for what may not be asked for here."""
        pattern = Pattern.read(text)
        address = pattern.place.address
        if address is not None and (word := why_refused(address, self.private)) is not None:
            raise BadInput(f"its address is not public ({word})", remedy=_OTHER_ADDRESS[word in _NEVER])
        if not any(permitted.covers(pattern) for permitted in self.allow):
            what = "it is beyond what jobs may ask for here" if self.allow else "jobs have no network here"
            raise BadInput(what, remedy="remove it, or have PATCHYARD_NETWORK_ALLOW permit it")
        return str(pattern)


NO_NETWORK = Ceiling()
"""Jobs have none."""
_OTHER_ADDRESS = {
    False: "remove it, or have PATCHYARD_NETWORK_PRIVATE permit its range",
    True: "remove it; no setting permits it",
}


def _read_range(text: str) -> Range:
    try:
        found = ip_network(text)
    except ValueError:
        raise BadInput(f"{text!r} is no range of addresses", remedy="write it as 10.1.2.0/24") from None
    if isinstance(found, IPv6Network) and found.network_address.ipv4_mapped is not None:
        raise BadInput(f"{text!r} is IPv4 in IPv6's clothes", remedy="write it as 10.1.2.0/24")
    return found
