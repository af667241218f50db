"""Mounts, binds, moves and unmounts, by the old calls and the new ones.

Fooled: one call succeeds, and what holds files apart can be taken off.
"""

from attempts import call, none_of

AT_FDCWD, MS_BIND, MS_REMOUNT, MNT_DETACH = -100, 4096, 32, 2
none_of(
    [
        ("tmpfs", lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, b"")),
        ("proc", lambda: call("mount", b"proc", b"/tmp", b"proc", 0, b"")),
        ("cgroup", lambda: call("mount", b"none", b"/tmp", b"cgroup", 0, b"memory")),
        ("overlay", lambda: call("mount", b"none", b"/tmp", b"overlay", 0, b"lowerdir=/etc:/usr")),
        ("bind", lambda: call("mount", b"/", b"/tmp", b"", MS_BIND, b"")),
        ("remount", lambda: call("mount", b"none", b"/", b"", MS_REMOUNT, b"")),
        ("umount", lambda: call("umount2", b"/proc/kcore", MNT_DETACH)),
        ("umount workspace", lambda: call("umount2", b"/workspace", MNT_DETACH)),
        ("fsopen", lambda: call("fsopen", b"tmpfs", 0)),
        ("open_tree", lambda: call("open_tree", AT_FDCWD, b"/", 1)),
        ("move_mount", lambda: call("move_mount", AT_FDCWD, b"/tmp", AT_FDCWD, b"/mnt", 0)),
        ("swapon", lambda: call("swapon", b"/tmp", 0)),
    ]
)
