"""Fills shared memory, by files and by segments, which no process has to hold. Fooled: it is counted to nobody."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
total = 0
try:
    with open("/dev/shm/x", "wb") as file:
        while True:
            total += file.write(b"x" * 1_048_576)
            file.flush()
except OSError as error:
    print("shm", total >> 20, error.strerror, flush=True)
libc.shmat.restype = ctypes.c_void_p
while True:
    segment = libc.shmget(0, 64 << 20, 0o1600)
    if segment < 0:
        print("segments refused", os.strerror(ctypes.get_errno()))
        break
    ctypes.memset(libc.shmat(segment, None, 0), 1, 64 << 20)
