"""Makes devices, and opens those that would be a disk, memory or a virtual machine.

Fooled: one can be made or opened.
"""

import fcntl
import os
import stat
import termios

from attempts import none_of

NAMES = ("sda", "sda1", "vda", "nvme0n1", "loop0", "loop-control", "mem", "kmem", "port", "kmsg", "kvm", "fuse",
            "net/tun",
         "mapper/control", "dm-0", "btrfs-control", "vhost-net", "userfaultfd", "cpu/0/msr", "dri/card0",
         "hpet")  # fmt: skip


def make(kind, major, minor):
    path = f"/tmp/device-{major}-{minor}"
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    return path


def type_for_others():
    with open("/dev/tty", "wb", buffering=0) as terminal:
        fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
        return "typed"


def attempts():
    for major, minor in ((8, 0), (1, 1), (253, 0), (10, 232), (10, 229), (7, 0)):
        yield f"block {major}:{minor}", lambda a=major, b=minor: make(stat.S_IFBLK, a, b)
        yield f"character {major}:{minor}", lambda a=major, b=minor: make(stat.S_IFCHR, a, b)
    for name in NAMES:
        yield name, lambda name=name: os.open(f"/dev/{name}", os.O_RDWR)
    yield "TIOCSTI", type_for_others


none_of(attempts())
