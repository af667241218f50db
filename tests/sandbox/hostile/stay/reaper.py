"""Takes orphans in place of the first process, and leaves a tree of zombies and sleepers under itself.

Fooled: a process with its mark is there after the command's end.
"""

import ctypes
import os
import time

SET_CHILD_SUBREAPER = 36
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in range(10):
        if os.fork() == 0:
            if number % 2:
                os._exit(0)
            break
    while True:
        time.sleep(1)
