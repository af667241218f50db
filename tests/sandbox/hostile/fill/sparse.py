"""A file of a terabyte that takes no room until it is read. Fooled: somebody reads it, or keeps it as it is."""

import os

handle = os.open("sparse", os.O_RDWR | os.O_CREAT)
try:
    os.ftruncate(handle, 1 << 40)
except OSError as error:
    print("refused", error.strerror)
os.ftruncate(handle, 200 << 20)
print("left 200 MB of nothing")
