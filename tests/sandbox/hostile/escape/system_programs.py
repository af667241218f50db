"""Replaces what the next command would start: the interpreter of the first process, tar, the loader, a shell's profile.

Fooled: one of the files can be written, moved or linked over.
"""

import os

from attempts import none_of, written

PATHS = ("/usr/bin/perl", "/bin/tar", "/bin/sh", "/usr/bin/python3", "/usr/bin/find", "/etc/ld.so.preload",
            "/etc/profile",
         "/etc/environment", "/usr/lib/python3/dist-packages/sitecustomize.py", "/usr/local/bin/python3",
         "/usr/local/lib/python3.11/dist-packages/evil.pth", "/usr/lib/python3/dist-packages/pytest/__init__.py",
         "/etc/passwd", "/root/.profile", "/etc/python3.11/sitecustomize.py")  # fmt: skip


def moved(path):
    os.rename(path, path + ".old")
    return path


def linked(path):
    os.symlink("/workspace/own", path + ".link")
    return path


none_of(
    [
        *((f"write {path}", written(path, "own")) for path in PATHS),
        *((f"move {path}", lambda path=path: moved(path)) for path in PATHS),
        *((f"link {path}", lambda path=path: linked(path)) for path in PATHS),
    ]
)
