"""Keeps every processor busy, with as many threads as it may have, in uninterruptible looking loops.

Fooled: killing it takes until long after the command's end.
"""

import os
import threading


def spin():
    while True:
        pass


if os.fork() == 0:
    os.setsid()
    for _ in range(4):
        threading.Thread(target=spin).start()
