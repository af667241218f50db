"""What every backend holds a sandbox to, in no engine's words: who it is, what it may take, and where it may write."""

from __future__ import annotations

from ledger.records.base import Record
from policy.ceilings import KIB, MIB, Limits
from runners.sandbox import wrapper

UID = GID = 65532
HOSTNAME = "sandbox"
SHARED_MEMORY_BYTES = 64 * MIB
BYTES_PER_INODE = 4 * KIB
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
TMP = "/tmp"  # noqa: S108  (a path inside the sandbox)


class FileSystem(Record):
    """An empty file system in memory, for the sandbox's user. Programs may be run from it: builds and tests do."""

    size_bytes: int
    inodes: int
    mode: str


def file_systems(limits: Limits) -> dict[str, FileSystem]:
    """The only places that can be written, by their path."""
    return {
        wrapper.WORKSPACE: file_system(limits.workspace_bytes, mode="0755"),
        TMP: file_system(limits.tmp_bytes, mode="1777"),
    }


def file_system(size_bytes: int, *, mode: str) -> FileSystem:
    """One of `size_bytes`; its inodes, which live in the kernel's memory, are bounded with it."""
    return FileSystem(size_bytes=size_bytes, inodes=max(64, size_bytes // BYTES_PER_INODE), mode=mode)


OWN_KERNEL_PROCESSES = 256
"""What a runtime with a kernel of its own is granted beside its sandbox's processes: that kernel's threads are counted
with them, and it ends when it can have no more."""


def process_limit(limits: Limits, *, own_kernel: bool) -> int:
    """How many processes this machine's kernel lets a sandbox have."""
    return limits.pids + (OWN_KERNEL_PROCESSES if own_kernel else 0)


def shared_memory_bytes(limits: Limits) -> int:
    """The size of /dev/shm."""
    return min(SHARED_MEMORY_BYTES, limits.tmp_bytes)


def resource_limits(limits: Limits) -> dict[str, int]:
    """Per process, hard and soft, by the names of setrlimit(2) in lower case and without their prefix."""
    return {
        "nofile": limits.open_files,
        "fsize": limits.file_size_bytes,
        "core": 0,
        "memlock": 64 * KIB,
        "msgqueue": 64 * KIB,
    }
