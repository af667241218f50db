"""What a sandbox's first process is told on its input stream: the files, the command, and when it may begin.

An order is `KIND LENGTH\\n` and LENGTH bytes: `T` a piece of a tar to unpack · `U` the first files are all there · `X`
the command · `W` paths to take away · `G` go. `X` comes after `U`, at once or when there is a command; what is sent
between `X` and `G` changes the first files into those of the command. See `runners.sandbox.wrapper`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runners.sandbox.spec import SandboxSpec


@dataclass(frozen=True)
class Changes:
    """What turns the files that an armed sandbox has into those that its command is to see: first the paths in `gone`
    are taken away, whole folders too, then the tar `files` is unpacked over the rest."""

    gone: Sequence[bytes] = ()
    files: Iterable[bytes] = ()


def new_mark() -> bytes:
    """What a sandbox ends its output with: nothing that its command could know."""
    return b"\n" + secrets.token_hex(16).encode() + b"\n"


def files_orders(files: Iterable[bytes]) -> Iterator[bytes]:
    """The first files, a tar in pieces."""
    yield from _tar(files)
    yield b"U 0\n"


def command_orders(spec: SandboxSpec, mark: bytes, changes: Changes | None = None) -> Iterator[bytes]:
    """The command, what changes before it, and that it may begin."""
    told = [
        mark,
        b"%.3f" % spec.deadline_seconds,
        b"%d" % spec.report_bytes,
        b"%d" % (spec.workspace_export_bytes if spec.export_workspace else 0),
        b"%d" % len(spec.reports),
        *map(str.encode, spec.reports),
        *map(str.encode, spec.command),
    ]
    yield _order(b"X", b"\0".join(told))
    if changes is not None:
        if changes.gone:
            yield _order(b"W", b"\0".join(changes.gone))
        yield from _tar(changes.files)
    yield b"G 0\n"


def _tar(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        if piece:
            yield b"T %d\n" % len(piece)
            yield piece


def _order(kind: bytes, payload: bytes) -> bytes:
    return b"%s %d\n%s" % (kind, len(payload), payload)
