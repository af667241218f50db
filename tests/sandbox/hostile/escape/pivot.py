"""Changes its root, and walks up out of it by a folder that was left open.

Fooled: chroot or pivot_root succeeds.
"""

import os

from attempts import call, none_of

os.makedirs("/tmp/new/old", exist_ok=True)
none_of(
    [
        ("chroot", lambda: call("chroot", b"/tmp/new")),
        ("pivot_root", lambda: call("pivot_root", b"/tmp/new", b"/tmp/new/old")),
        ("pivot_root in place", lambda: call("pivot_root", b".", b".")),
        ("above the root", lambda: None if os.path.samefile("/../../../..", "/") else "above"),
    ]
)
