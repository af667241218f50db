"""Folders in folders, 20,000 deep, whose path no system call takes. Fooled: what packs or removes it does not end."""

import os

try:
    for _ in range(20_000):
        os.mkdir("d")
        os.chdir("d")
except OSError as error:
    print(error.strerror)
