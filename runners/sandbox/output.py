"""Output that is bounded while it is read: the first and the last of it are kept, the middle is counted.

A sandbox ends its output with a mark, which is no part of it: seen at the very end, nothing more will come. One that
was ended leaves no mark.
"""

from __future__ import annotations

from collections import deque


class BoundedOutput:
    """Keeps at most `limit_bytes`: one half from the start, the other from the end. Memory stays within twice that."""

    def __init__(self, limit_bytes: int, mark: bytes = b"") -> None:
        self._mark, self._held = mark, b""
        self._head_limit = limit_bytes // 2
        self._tail_limit = limit_bytes - self._head_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether the mark has come."""
        return bool(self._mark) and self._held == self._mark

    def feed(self, data: bytes) -> None:
        """Take the next piece of the output."""
        if self._mark:  # what may be the beginning of the mark, or the whole of it, is not yet output
            data = self._held + data
            cut = max(0, len(data) - len(self._mark))
            data, self._held = data[:cut], data[cut:]
        self._keep(data)

    def end(self) -> None:
        """Nothing more will come: without its mark, what was held back is output too."""
        held, self._held = self._held, b""
        if held != self._mark:
            self._keep(held)
        self._mark = b""

    def _keep(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-self._tail_limit :])
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def head(self) -> bytes:
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        return b"".join(self._tail)[-self._tail_limit :]

    @property
    def truncated(self) -> bool:
        """Whether something is missing between head and tail."""
        return self.total_bytes > len(self._head) + len(self.tail)
