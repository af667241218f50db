"""Looks into the kernel's keyrings, which no namespace holds apart, and leaves a key for whoever comes next.

Fooled: a key is read or added.
"""

from attempts import call, none_of, read

none_of(
    [
        ("session", lambda: call("keyctl", 0, -3, 1)),
        ("user", lambda: call("keyctl", 0, -4, 1)),
        ("describe", lambda: call("keyctl", 6, -4, b"x" * 64, 64)),
        ("add", lambda: call("add_key", b"user", b"left", b"behind", 6, -4)),
        ("request", lambda: call("request_key", b"user", b"left", b"", -4)),
        ("/proc/keys", read("/proc/keys")),
    ]
)
