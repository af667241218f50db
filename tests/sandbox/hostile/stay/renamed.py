"""Looks like a thread of the kernel: its name is one, and its command line keeps nothing but a mark.

Fooled: a process with that mark is there after the command's end.
"""

import os
import sys

if os.fork() == 0:
    os.setsid()
    os.execv("/bin/sh", ["[kworker/0:1]", "-c", "while :; do sleep 1; done", sys.argv[1]])  # noqa: S606
