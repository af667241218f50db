"""Uses what was left open when it was started, as a way back: a folder of the machine, or the runtime's own program.

Fooled: an open folder, a file that is no pipe (CVE-2024-21626), or a program that can be written (CVE-2019-5736).
"""

import os
import stat

from attempts import none_of


def what_it_is(number):
    mode = os.fstat(number).st_mode
    if stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and os.readlink(f"/proc/self/fd/{number}") == "/dev/null"):
        return None
    return os.readlink(f"/proc/self/fd/{number}")


def rewritten(path):
    os.close(os.open(path, os.O_WRONLY))
    return path


def up_from(number):
    os.close(os.open("..", os.O_RDONLY, dir_fd=number))
    return number


LISTED = os.open("/proc/self/fd", os.O_RDONLY)
OPEN = [int(name) for name in os.listdir(LISTED) if int(name) not in (LISTED, LISTED + 1)]
none_of(
    [
        *((f"file {number}", lambda number=number: what_it_is(number)) for number in OPEN),
        *(
            (f"folder {number}", lambda number=number: up_from(number))
            for number in range(3, 3 + 64)
            if number != LISTED
        ),
        *(
            (path, lambda path=path: rewritten(path))
            for path in ("/proc/self/exe", "/proc/1/exe", "/usr/bin/perl", "/bin/sh")
        ),
    ]
)
