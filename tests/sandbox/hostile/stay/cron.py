"""Two that watch over each other: whichever dies is started again by the other. Called with a mark.

Fooled: a process with that mark is there after the command's end.
"""

import os
import subprocess
import sys
import time


def watch(other):
    while True:
        if other is None or other.poll() is not None:
            other = subprocess.Popen([sys.executable, __file__, sys.argv[1], str(os.getpid())], start_new_session=True)
        time.sleep(0.01)


def be_watched(pid):
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    os.execv(sys.executable, [sys.executable, __file__, sys.argv[1]])  # noqa: S606


if len(sys.argv) > 2:
    be_watched(int(sys.argv[2]))
elif os.fork() == 0:
    os.setsid()
    watch(None)
