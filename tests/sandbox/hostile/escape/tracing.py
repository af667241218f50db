"""Attaches to the sandbox's first process, reads and writes its memory, and takes its open files.

Fooled: one call succeeds, and the report of how the command ended can be forged.
"""

import ctypes
import os

from attempts import call, none_of

ATTACH, SEIZE, TRACEME = 16, 0x4206, 0
piece = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(piece), 64)


def memory():
    with open("/proc/1/mem", "r+b", buffering=0) as file:
        return file.fileno()


def steal():
    handle = os.pidfd_open(1)
    return [call("pidfd_getfd", handle, number, 0) for number in range(3)]


def attempts():
    for name, pid in (("first", 1), ("parent", os.getppid())):
        yield f"attach {name}", lambda pid=pid: call("ptrace", ATTACH, pid, 0, 0)
        yield f"seize {name}", lambda pid=pid: call("ptrace", SEIZE, pid, 0, 0)
        yield f"read {name}", lambda pid=pid: call("process_vm_readv", pid, vector, 1, vector, 1, 0)
    yield "traceme", lambda: call("ptrace", TRACEME, 0, 0, 0)
    yield "memory of the first", memory
    yield "its open files", steal


none_of(attempts())
