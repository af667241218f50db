"""Goes through /proc/PID of every process that is not of its own command, the first one above all.

Fooled: a file of the machine, or the memory and environment of the sandbox's first process, comes out.
"""

import os

from attempts import none_of, read

HERE = os.stat("/")


def elsewhere(path):
    found = os.stat(path)
    return path if (found.st_dev, found.st_ino) != (HERE.st_dev, HERE.st_ino) else None


def attempts():
    for pid in sorted({int(name) for name in os.listdir("/proc") if name.isdigit()} | {1}):
        if pid != 1 and os.getpgid(pid) == os.getpgid(0):
            continue
        yield f"/proc/{pid}/root", lambda pid=pid: elsewhere(f"/proc/{pid}/root/.")
        for name in ("environ", "mem", "maps", "stack", "syscall", "auxv"):
            yield f"/proc/{pid}/{name}", read(f"/proc/{pid}/{name}")
        yield f"/proc/{pid}/fd", lambda pid=pid: os.listdir(f"/proc/{pid}/fd") or None
        yield f"/proc/{pid}/exe", lambda pid=pid: os.readlink(f"/proc/{pid}/exe")
        yield f"/proc/{pid}/cwd", lambda pid=pid: os.listdir(f"/proc/{pid}/cwd/") or None


none_of(attempts())
