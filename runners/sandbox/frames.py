"""The report that a sandbox's first process sends on its error stream, read piece by piece and never trusted for size.

A frame is `KIND LENGTH\\n` and LENGTH bytes; see `runners.sandbox.wrapper`.
"""

from __future__ import annotations

from typing import Literal, cast

from runners.sandbox.backend import SandboxBroken
from runners.sandbox.spec import ReportFile, SandboxSpec

MAX_HEADER_BYTES = 32
MAX_FACTS_BYTES = 1 << 16
MAX_SOCKETS_BYTES = 1 << 18
MAX_SOCKETS = 10


class Report:
    """What has come so far. `armed` says that the first files are there, `started` and `ended` that the command did;
    `facts` are PID 1's lines about its end. Without a spec, no command is known yet."""

    def __init__(self, spec: SandboxSpec | None) -> None:
        self._spec = spec
        self._buffer = bytearray()
        self._tar = bytearray()
        self._files_seen, self._packed = 0, False
        self.armed = self.started = False
        self.facts: dict[str, str] | None = None
        self.files: dict[str, ReportFile] = {}
        self.workspace_state: Literal["ok", "too_big", "failed"] = "failed"
        self.workspace_sockets: tuple[str, ...] = ()

    def expect(self, spec: SandboxSpec) -> None:
        """The command is known now."""
        self._spec = spec

    @property
    def ended(self) -> bool:
        return self.facts is not None

    @property
    def complete(self) -> bool:
        """Whether all has come that PID 1 has to say: after that it ends."""
        if self.facts is None or self._spec is None:
            return False
        if self.facts.get("unpacked") != "1":
            return True
        return self._files_seen == len(self._spec.reports) and (self._packed or not self._spec.export_workspace)

    @property
    def workspace_tar(self) -> bytes | None:
        return bytes(self._tar) if self.workspace_state == "ok" else None

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises SandboxBroken when they are no frames, or larger than was asked for."""
        self._buffer += data
        while (line := self._buffer.find(b"\n", 0, MAX_HEADER_BYTES)) >= 0:
            kind, _, length = bytes(self._buffer[:line]).partition(b" ")
            if not length.isdigit() or int(length) > self._most(kind):
                raise SandboxBroken(f"the sandbox reported {bytes(self._buffer[:line])!r}")
            end = line + 1 + int(length)
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[line + 1 : end])
            del self._buffer[:end]
            self._take(kind, payload)
        if len(self._buffer) >= MAX_HEADER_BYTES:
            raise SandboxBroken(f"the sandbox reported {bytes(self._buffer[:MAX_HEADER_BYTES])!r}")

    def _most(self, kind: bytes) -> int:
        sizes = {b"A": 0, b"E": MAX_FACTS_BYTES}
        if self._spec is not None:
            sizes |= {
                b"R": 0,
                b"F": self._spec.report_bytes + MAX_HEADER_BYTES,
                b"D": max(0, self._spec.workspace_export_bytes - len(self._tar)),
                b"Z": MAX_SOCKETS_BYTES,
            }
        return sizes.get(kind, -1)

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"A":
            self.armed = True
        elif kind == b"R":
            self.started = True
        elif kind == b"E":
            pairs = (line.partition("=") for line in payload.decode(errors="replace").splitlines())
            self.facts = {name: value for name, _, value in pairs}
        elif kind == b"F":
            self._take_file(payload)
        elif kind == b"D":
            self._tar += payload
        else:
            self._take_outcome(payload)

    def _take_file(self, payload: bytes) -> None:
        head, _, data = payload.partition(b"\n")
        index, _, state = head.decode(errors="replace").partition(" ")
        if self._spec is None or not index.isdigit() or int(index) >= len(self._spec.reports):
            raise SandboxBroken(f"the sandbox reported a file {head!r}")
        self._files_seen += 1
        path = self._spec.reports[int(index)]
        if len(data) > self._spec.report_bytes:
            state, data = "too_big", b""
        try:
            self.files[path] = ReportFile.model_validate({"path": path, "state": state, "data": data})
        except ValueError as wrong:
            raise SandboxBroken(f"the sandbox reported a file {head!r}") from wrong

    def _take_outcome(self, payload: bytes) -> None:
        state, _, sockets = payload.partition(b"\n")
        if state not in (b"ok", b"too_big", b"failed"):
            raise SandboxBroken(f"the sandbox reported {state[:20]!r} of its workspace")
        self._packed = True
        self.workspace_state = cast(Literal["ok", "too_big", "failed"], state.decode())
        names = [name.decode(errors="replace").removeprefix("./") for name in sockets.split(b"\0") if name]
        self.workspace_sockets = tuple(names[:MAX_SOCKETS])
