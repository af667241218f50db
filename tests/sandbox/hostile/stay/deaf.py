"""A session of its own, in which every signal that can be is ignored. Called with a mark.

Fooled: a process with that mark is there after the command's end.
"""

import os
import signal
import time

if os.fork() == 0:
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)
