"""Asks the kernel in another ABI, whose numbers a filter may have forgotten: x32, and the 32-bit gate of int 0x80.

Fooled: the call is answered. A filter that knows them ends the process that tries, which is why a child does.
"""

import ctypes
import mmap
import os
import signal

from attempts import libc, none_of

X32 = 0x40000000


def in_a_child(attempt):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if attempt() > 0 else 1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None if os.WTERMSIG(status) in (signal.SIGSYS, signal.SIGSEGV) else os.WTERMSIG(status)
    return "answered" if os.WEXITSTATUS(status) == 0 else None


def int_80():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # getpid of i386
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def attempts():
    if os.uname().machine == "x86_64":
        yield "x32", lambda: in_a_child(lambda: libc.syscall(ctypes.c_long(X32 | 39)))
        yield "int 0x80", lambda: in_a_child(int_80)


none_of(attempts())
