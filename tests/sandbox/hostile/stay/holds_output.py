"""Keeps the command's output open in a process of its own, and writes on: who waits for its end waits for ever.

Fooled: the result comes at the deadline only, or a process with its mark is there afterwards.
"""

import os
import time

if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"still here\n")
        time.sleep(0.05)
