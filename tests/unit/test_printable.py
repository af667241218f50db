"""Text of strangers on its way to a terminal."""

from __future__ import annotations

from patchyard.printable import printable, printable_lines


def test_text_of_strangers_is_printable():
    assert printable("a\x1b[31mb\r\n\u202ec", 100) == "a\\x1b[31mb\\x0d\\x0a\\u202ec"
    assert printable("x" * 10, 5) == "xxxx…"
    assert printable_lines("a\tb\r\nc\rd") == ["a   b", "c\\x0dd"]
