"""Writes to the kernel's settings: core_pattern, modprobe and uevent_helper name programs that it starts as root.

Fooled: one of the files takes the text, and a crash later starts a program outside.
"""

from attempts import none_of, written

OWN = "|/workspace/pwned"
FILES = {
    "/proc/sys/kernel/core_pattern": OWN,
    "/proc/sys/kernel/modprobe": "/workspace/pwned",
    "/proc/sys/kernel/hotplug": "/workspace/pwned",
    "/sys/kernel/uevent_helper": "/workspace/pwned",
    "/proc/sys/fs/binfmt_misc/register": ":x:M::x::/workspace/pwned:",
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/net/ipv4/ip_forward": "1",
    "/proc/sys/kernel/yama/ptrace_scope": "0",
    "/proc/sys/user/max_user_namespaces": "100",
    "/proc/sysrq-trigger": "h",
    "/proc/self/uid_map": "0 0 1",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always",
    "/sys/power/state": "mem",
}
none_of((path, written(path, text)) for path, text in FILES.items())
