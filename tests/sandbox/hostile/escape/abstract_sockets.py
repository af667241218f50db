"""Connects to abstract sockets, which no file system holds apart (CVE-2020-15257), by list and by known names.

Fooled: somebody outside answers.
"""

import socket

from attempts import none_of

KNOWN = ("/containerd-shim/x.sock", "/tmp/.X11-unix/X0", "/com/ubuntu/upstart", "/org/freedesktop/systemd1/notify",
            "gdm",
         "/tmp/dbus-0", "snap.docker.dockerd", "/var/run/docker.sock")  # fmt: skip


def listed():
    with open("/proc/net/unix") as lines:
        return [words[7][1:] for words in map(str.split, lines) if len(words) > 7 and words[7].startswith("@")]


def reach(name):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(2)
        one.connect("\0" + name)
        return name


none_of((f"@{name}", lambda name=name: reach(name)) for name in (*KNOWN, *listed()))
