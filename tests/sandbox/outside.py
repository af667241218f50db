"""The world that a sandbox with a network may reach in the tests: servers on this machine's loopback."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME = "mirror.test"


def certificate(folder: Path) -> Path:
    """A certificate of the mirror, and its key, in one file; it vouches for itself."""
    both = folder / "both.pem"
    names = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},DNS:*.{NAME}")
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names)
    made = subprocess.run([*command, "-keyout", "-", "-out", "-"], check=True, capture_output=True, text=True)
    both.write_text(made.stdout)
    return both


@dataclass
class Mirror:
    """An HTTP server that remembers what it was asked, over TLS if it has a certificate."""

    both: Path | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.asked))
        self._server.daemon_threads = True
        if self.both is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.both)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(asked: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def _answer(self) -> None:
            body = self._body()
            asked.append(
                {"line": self.requestline, "headers": [f"{k}: {v}" for k, v in self.headers.items()], "body": body}
            )
            if "gzip" in self.path:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n")
                return
            said = f"you asked for {self.path}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said)

        do_GET = do_HEAD = do_POST = _answer

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def log_message(self, *_: Any) -> None:
            return

    return Handler


class Listener:
    """A server that does with each connection what a test says, and counts them."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._serve, self._open = serve, True
        self.accepted, self.ended = 0, 0
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._serve(connection)
        except OSError:
            pass
        finally:
            self.ended += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def swallow(connection: socket.socket) -> None:
    """Read until the end, and say nothing."""
    while connection.recv(65536):
        pass


def join(connection: socket.socket, path: str) -> None:
    """Pass everything on to a local socket, and back."""
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(path)
        back = threading.Thread(target=_pump, args=(other, connection), daemon=True)
        back.start()
        _pump(connection, other)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
