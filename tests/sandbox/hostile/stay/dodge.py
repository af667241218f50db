"""A storm of forks, of which each lives for a moment only: whoever kills by a list of processes is always late.

Fooled: a process with its mark is there after the command's end.
"""

import os
import time

for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork() != 0:
                    os._exit(0)
            except OSError:
                time.sleep(0.001)
