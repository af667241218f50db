"""What the programs of this folder share: attempts of which not one may succeed, and one line that says how it went."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable

libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "fsopen": 430, "open_tree": 428,
        "move_mount": 429,
        "unshare": 272, "setns": 308, "keyctl": 250, "add_key": 248, "request_key": 249, "ptrace": 101,
        "process_vm_readv": 310, "pidfd_open": 434, "pidfd_getfd": 438, "mknod": 133, "io_uring_setup": 425, "bpf": 321,
        "userfaultfd": 323, "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "syslog": 103,
        "capset": 126, "clone": 56, "swapon": 167, "reboot": 169, "init_module": 175, "kexec_load": 246,
        "settimeofday": 164,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "fsopen": 430, "open_tree": 428, "move_mount": 429,
        "unshare": 97, "setns": 268, "keyctl": 219, "add_key": 217, "request_key": 218, "ptrace": 117,
        "process_vm_readv": 270, "pidfd_open": 434, "pidfd_getfd": 438, "mknodat": 33, "io_uring_setup": 425,
        "bpf": 280,
        "userfaultfd": 282, "perf_event_open": 241, "name_to_handle_at": 264, "open_by_handle_at": 265, "syslog": 116,
        "capset": 91, "clone": 220, "swapon": 224, "reboot": 142, "init_module": 105, "kexec_load": 104,
        "settimeofday": 170,
    },
}[os.uname().machine]  # fmt: skip


def call(name: str, *arguments: object) -> int:
    """A system call by number, past the C library's own checks. Raises OSError."""
    plain = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *plain)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return int(result)


def none_of(attempts: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """Make all attempts, and say which succeeded. One that returns None or raises OSError did not."""
    got, missed = [], []
    for name, attempt in attempts:
        try:
            result = attempt()
        except OSError as error:
            missed.append(f"{name}: {errno.errorcode.get(error.errno or 0, error)}")
            continue
        if result is None:
            missed.append(name)
        else:
            got.append(f"{name}: {result!r}"[:200])
    print(f"GOT {'; '.join(got)}" if got else f"HELD {len(missed)} attempts: {'; '.join(missed)[:1500]}")


def written(path: str, text: str) -> Callable[[], object]:
    """The attempt to write into a file."""

    def attempt() -> object:
        with open(path, "w") as file:
            file.write(text)
        return f"wrote {path}"

    return attempt


def read(path: str) -> Callable[[], object]:
    """The attempt to read something from a file."""

    def attempt() -> object:
        with open(path, "rb") as file:
            return file.read(64) or None

    return attempt
