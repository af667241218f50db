"""Inside a sandbox: asks its proxy, by hand, so that what is asked is exactly what a test says."""

from __future__ import annotations

import socket

PROXY = ("127.0.0.1", 3128)


def opened() -> socket.socket:
    """A connection to the proxy."""
    return socket.create_connection(PROXY, timeout=30)


def said(connection: socket.socket) -> bytes:
    """All that comes until the other side ends."""
    came = b""
    try:
        while data := connection.recv(65536):
            came += data
    except ConnectionError:
        pass
    return came


def asked(*pieces: bytes) -> str:
    """The answer to these bytes."""
    with opened() as connection:
        for piece in pieces:
            connection.sendall(piece)
        return said(connection).decode("latin-1")


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """A request of HTTP/1.1."""
    lines = [f"{method} {target} HTTP/1.1", *(headers or ("Host: x",)), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def refusal(target: str) -> str:
    """The word with which a CONNECT is refused, or `granted`."""
    answer = asked_head(request("CONNECT", target))
    status = answer.split(" ")[1] if " " in answer else answer
    return "granted" if status == "200" else answer.splitlines()[0].rpartition("(")[2].rstrip(")")


def asked_head(data: bytes) -> str:
    """The first thing that is answered."""
    with opened() as connection:
        connection.sendall(data)
        return connection.recv(65536).decode("latin-1")


def tunnel(target: str) -> socket.socket:
    """A granted CONNECT."""
    connection = opened()
    connection.sendall(request("CONNECT", target))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1) or b"\r\n\r\n"
    assert b" 200 " in head, head
    return connection
