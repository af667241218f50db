"""Servers on loopback for sources: files, git's smart HTTP protocol, and a package index in both of its forms."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Responder = Callable[[http.server.BaseHTTPRequestHandler], None]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def served(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of loopback; the URL without a slash at its end."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def files_of(folder: Path) -> Callable[..., http.server.BaseHTTPRequestHandler]:
    return functools.partial(_Quiet, directory=str(folder))


def answering(respond: Responder) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


def reply(request: http.server.BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def git_backend(root: Path, password: str | None = None) -> type[http.server.BaseHTTPRequestHandler]:
    """git's smart HTTP protocol over `git http-backend`, as a CGI program."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return

        def do_GET(self) -> None:
            self._run(b"")

        def do_POST(self) -> None:
            self._run(self._body())

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _run(self, body: bytes) -> None:
            if password is not None and self.headers.get("Authorization") != password:
                reply(self, 401, WWW_Authenticate='Basic realm="private"')
                return
            path, _, query = self.path.partition("?")
            env = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            status = int(fields.pop("Status", "200").split()[0])
            reply(self, status, content, **fields)

    return Handler


class Index:
    """A package index: PEP 691's JSON when asked for and `speaks_json`, else PEP 503's HTML."""

    def __init__(self, files: dict[str, bytes], digests: dict[str, str], *, speaks_json: bool) -> None:
        self.files, self.digests, self.speaks_json = files, digests, speaks_json
        self.asked: list[tuple[str, str | None]] = []

    def respond(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self.asked.append((request.path, request.headers.get("Authorization")))
        name = request.path.rsplit("/", 1)[-1]
        if request.path == "/simple/small-thing/":
            self._page(request)
        elif request.path.startswith("/files/") and name in self.files:
            reply(request, 200, self.files[name])
        else:
            reply(request, 404)

    def _page(self, request: http.server.BaseHTTPRequestHandler) -> None:
        if self.speaks_json and "application/vnd.pypi.simple.v1+json" in request.headers.get("Accept", ""):
            listed = [
                {"filename": name, "url": f"../../files/{name}", "hashes": self._hashes(name)} for name in self.files
            ]
            body = json.dumps({"meta": {"api-version": "1.1"}, "name": "small-thing", "files": listed}).encode()
            reply(request, 200, body, Content_Type="application/vnd.pypi.simple.v1+json")
            return
        anchors = "".join(
            f'<a href="/files/{name}{"#sha256=" + self.digests[name] if name in self.digests else ""}">{name}</a><br>'
            for name in self.files
        )
        reply(request, 200, f"<!DOCTYPE html><body>{anchors}</body>".encode(), Content_Type="text/html")

    def _hashes(self, name: str) -> dict[str, str]:
        return {"sha256": self.digests[name]} if name in self.digests else {}
