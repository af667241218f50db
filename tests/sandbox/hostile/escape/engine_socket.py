"""Looks for a socket of a container engine or of anybody else, by name and by walking through all files.

Fooled: one of them answers, and whoever talks to an engine is root on its machine.
"""

import os
import socket
import stat

from attempts import none_of

PLACES = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
          "/run/crio/crio.sock", "/run/user/0/docker.sock", "/run/dbus/system_bus_socket",
          "/run/systemd/private")  # fmt: skip


def reach(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(2)
        one.connect(path)
        return path


def sockets():
    for root, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(root, name) not in ("/proc", "/sys")]
        for name in files:
            path = os.path.join(root, name)
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                yield path


none_of((path, lambda path=path: reach(path)) for path in (*PLACES, *sockets()))
