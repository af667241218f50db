"""Looks for whoever else is on the machine: processes, shared memory, message queues, mounts, cgroups, users' files.

Fooled: something is seen that is not the sandbox's own.
"""

import glob
import os

from attempts import none_of, read


def foreign_processes():
    own = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with open(f"/proc/{name}/status") as lines:
                own.add(next(line.split()[1] for line in lines if line.startswith("Uid:")))
    return None if own == {"65532"} else own


def listed(path):
    with open(path) as lines:
        return lines.readlines()[1:] or None


def host_folders():
    return [
        path
        for path in ("/host", "/rootfs", "/mnt/host", "/var/lib/docker", "/var/lib/kubelet")
        if os.path.exists(path)
    ] or None


def cgroup_neighbours():
    return [
        path for path in glob.glob("/sys/fs/cgroup/*/*/cgroup.procs") + glob.glob("/sys/fs/cgroup/*/tasks*/") if path
    ] or None


none_of(
    [
        ("processes", foreign_processes),
        ("shm", lambda: listed("/proc/sysvipc/shm")),
        ("sem", lambda: listed("/proc/sysvipc/sem")),
        ("msg", lambda: listed("/proc/sysvipc/msg")),
        ("folders", host_folders),
        ("cgroups", cgroup_neighbours),
        ("timers", read("/proc/timer_list")),
        ("kcore", read("/proc/kcore")),
        ("homes", lambda: os.listdir("/home") or os.listdir("/root") or None),
        (
            "secrets",
            lambda: [name for name in os.environ if "KEY" in name or "TOKEN" in name or "SECRET" in name] or None,
        ),
        ("service account", read("/var/run/secrets/kubernetes.io/serviceaccount/token")),
    ]
)
