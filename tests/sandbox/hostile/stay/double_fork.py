"""A daemon by the book: two forks, a session of its own, every file closed. Called with a mark to be known by.

Fooled: a process with that mark is there after the command's end.
"""

import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 256)
        while True:
            time.sleep(1)
    os._exit(0)
