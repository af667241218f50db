"""The system calls that a sandbox may make; all others fail with EPERM.

It is an allow list, so that a call that a new kernel brings is refused until somebody has thought about it. It started
from what Docker's default profile allows to a container without capabilities, and leaves out what escapes and kernel
exploits have gone through and no build or test needs: io_uring, keyrings, user and other namespaces, bpf, perf,
userfaultfd, ptrace and the reading and writing of other processes' memory, mounts, file handles, clock setting, and
every socket family but local, IP and routing (so no AF_ALG, CVE-2026-31431, and no AF_VSOCK or AF_PACKET). Only the
native architecture's calls exist: the 32-bit and x32 doors, which would need rules of their own, are shut.
"""

from __future__ import annotations

from typing import Any

from ledger.errors import Unfit

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
"""By the engine's name. Others lack nothing but somebody who has tried them."""

FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch ioctl io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listxattr llistxattr
    lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2
    pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir
    sendfile setxattr splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink
    unlinkat utime utimensat utimes write writev
"""
MEMORY = """
    brk madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync munlock
    munlockall munmap pkey_alloc pkey_free pkey_mprotect shmat shmctl shmdt shmget
"""
PROCESSES = """
    arch_prctl capget capset execve execveat exit exit_group fork getcpu getegid geteuid getgid getgroups getpgid
    getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get
    ioprio_set kill pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list
    set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid setresuid setreuid
    setrlimit setsid setuid sysinfo tgkill times tkill uname vfork wait4 waitid
"""
SIGNALS_AND_WAITING = """
    alarm epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_requeue
    futex_wait futex_waitv futex_wake get_robust_list pause pipe pipe2 poll ppoll pselect6 rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo select sigaltstack
    signalfd signalfd4
"""
TIME_AND_CHANCE = """
    clock_getres clock_gettime clock_nanosleep getitimer getrandom gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""
TALKING = """
    accept accept4 bind connect getpeername getsockname getsockopt listen mq_getsetattr mq_notify mq_open
    mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd recvfrom recvmmsg recvmsg semctl semget semop
    semtimedop sendmmsg sendmsg sendto setsockopt shutdown
"""

SOCKET_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Those that change nothing but uname's answer and the layout of old programs; the last only asks."""
NEW_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET, see clone(2)."""
ENOSYS = 38


def profile(architecture: str) -> dict[str, Any]:
    """The profile, in the form that engines and OCI runtimes share. Raises Unfit for an unknown architecture."""
    if architecture not in ARCHITECTURES:
        raise Unfit(f"no seccomp profile for {architecture}", remedy=f"use an engine on {' or '.join(ARCHITECTURES)}")
    names = " ".join((FILES, MEMORY, PROCESSES, SIGNALS_AND_WAITING, TIME_AND_CHANCE, TALKING)).split()
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": [ARCHITECTURES[architecture]],
        "syscalls": [
            {"names": sorted(names), "action": "SCMP_ACT_ALLOW"},
            *(_when("socket", _equal(0, family)) for family in SOCKET_FAMILIES.values()),
            _when("socketpair", _equal(0, SOCKET_FAMILIES["AF_UNIX"])),
            *(_when("personality", _equal(0, persona)) for persona in PERSONALITIES),
            _when("clone", {"index": 0, "value": NEW_NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}),
            # Its flags are in memory, where no filter can look; told that it does not exist, libc uses clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
        ],
    }


def _equal(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


def _when(name: str, argument: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}
