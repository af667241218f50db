"""Stops itself, so that it acts on no signal before it is continued.

Fooled: a process with its mark is there after the command's end.
"""

import os
import signal

if os.fork() == 0:
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
