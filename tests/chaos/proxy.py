"""A wire between services and PostgreSQL that can be cut in the middle of a commit, on either side of it.

It reads the frontend's messages (PostgreSQL's protocol 3.0, "Message Formats") so far as to know what was said in a
transaction and when it commits. Cut `before`, the server never hears of the commit; cut `after`,
it has committed and the client never learns.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

When = Literal["before", "after"]
_READ_BYTES = 1 << 16
_STARTUP_PROTOCOL = 3


@dataclass
class Cut:
    """One cut to be made: at the `nth` commit of a transaction in which the client said `said`."""

    said: str
    when: When
    nth: int = 1
    made: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Listens on a port of its own; each connection is two threads."""

    def __init__(self, database_url: str) -> None:
        parts = urlsplit(database_url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        login = parts.netloc.rpartition("@")[0]
        netloc = f"{login}@127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=netloc))
        self._cuts: list[Cut] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self, said: str, when: When, nth: int = 1) -> Cut:
        """Arms a cut, to be made once."""
        cut = Cut(said, when, nth)
        with self._lock:
            self._cuts.append(cut)
        return cut

    def close(self) -> None:
        """Accepts no more; connections end with their clients."""
        self._listener.close()

    def due(self, transaction: str) -> When | None:
        """Whether the transaction that commits now is to be cut; counts it."""
        with self._lock:
            for cut in self._cuts:
                if not cut.made.is_set() and cut.said in transaction:
                    cut.nth -= 1
                    if cut.nth == 0:
                        cut.made.set()
                        return cut.when
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            _Wire(client, server, self.due).start()


class _Wire:
    """One client's connection."""

    def __init__(self, client: socket.socket, server: socket.socket, due: Callable[[str], When | None]) -> None:
        self._client, self._server, self._due = client, server, due
        self._swallow = False
        self._transaction = ""
        self._prepared: dict[bytes, str] = {}

    def start(self) -> None:
        for run in (self._to_server, self._to_client):
            threading.Thread(target=run, daemon=True).start()

    def _to_client(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_READ_BYTES):
                if self._swallow:  # the answer to a commit
                    break
                self._client.sendall(data)
        self._close()

    def _to_server(self) -> None:
        with suppress(OSError):
            for kind, message in self._messages():
                when = self._due(self._transaction) if self._commits(kind, message) else None
                if when == "before":
                    break
                self._swallow = when == "after"
                self._server.sendall(message)
        if not self._swallow:
            self._close()

    def _close(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        """The client's messages with their kinds. What comes before the start-up message has no kind, nor has that."""
        buffer = bytearray()
        started = False
        while data := self._client.recv(_READ_BYTES):
            buffer += data
            while len(buffer) >= (5 if started else 8):
                at = int(started)
                length = int.from_bytes(buffer[at : at + 4]) + at
                if len(buffer) < length:
                    break
                message = bytes(buffer[:length])
                del buffer[:length]
                yield (message[:1] if started else b"", message)
                started = started or int.from_bytes(message[4:6]) == _STARTUP_PROTOCOL

    def _commits(self, kind: bytes, message: bytes) -> bool:
        """Takes note of what is said in the transaction; whether this message ends it with a commit."""
        if kind == b"Q":
            said = message[5:].rstrip(b"\0").decode(errors="replace")
        elif kind == b"P":  # name, statement
            name, statement = message[5:].split(b"\0")[:2]
            self._prepared[name] = statement.decode(errors="replace")
            return False
        elif kind == b"B":  # portal, name of the statement
            said = self._prepared.get(message[5:].split(b"\0")[1], "")
        else:
            return False
        if said.upper().startswith("BEGIN"):
            self._transaction = ""
        if said.upper() == "COMMIT":
            return True
        self._transaction += said
        return False


@contextmanager
def proxy_to(database_url: str) -> Iterator[Proxy]:
    """A proxy for as long as the block runs."""
    proxy = Proxy(database_url)
    try:
        yield proxy
    finally:
        proxy.close()
