"""Becomes root: by the calls, by set-user-id files of its own and the image's, and by files that say who is root.

Fooled: an effective uid of 0, a capability, or a changed /etc/passwd.
"""

import ctypes
import glob
import os
import shutil
import stat
import subprocess

from attempts import call, none_of, read, written

header = (ctypes.c_uint32 * 2)(0x20080522, 0)
all_of_them = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)


def own_set_uid():
    shutil.copy("/bin/sh", "/tmp/sh")
    os.chmod("/tmp/sh", 0o6755)  # noqa: S103
    seen = subprocess.run(
        ["/tmp/sh", "-pc", "id -u; id -g"], capture_output=True, text=True, check=False
    ).stdout.split()
    return seen if "0" in seen else None


def theirs():
    for place in ("/bin", "/usr/bin", "/usr/sbin", "/usr/lib/*"):
        for path in glob.glob(f"{place}/*"):
            if os.path.isfile(path) and os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
                return path
    return None


none_of(
    [
        ("setuid", lambda: os.setuid(0) or "root"),
        ("setresuid", lambda: os.setresuid(0, 0, 0) or "root"),
        ("setgroups", lambda: os.setgroups([0]) or "group 0"),
        ("capset", lambda: call("capset", header, all_of_them)),
        ("own file", own_set_uid),
        ("their file", theirs),
        ("passwd", written("/etc/passwd", "root::0:0::/:/bin/sh\n")),
        ("shadow", read("/etc/shadow")),
        ("sudoers", written("/etc/sudoers.d/x", "ALL ALL=(ALL) NOPASSWD: ALL\n")),
        ("chown", lambda: os.chown("/tmp/sh", 0, 0) or "chown"),
    ]
)
