"""Starts processes until there are no more to be had. Fooled: the machine has none left."""

import os
import time

count = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
    except OSError as error:
        print(count, error.strerror)
        break
