"""Writes a release agent into a cgroup (CVE-2022-0492), raises its own limits, and moves out of its cgroup.

Fooled: a file of a cgroup takes what is written.
"""

import glob
import os

from attempts import none_of, written

FILES = {"release_agent": "/workspace/pwned", "notify_on_release": "1", "cgroup.procs": str(os.getpid()), "tasks": "0",
         "memory.max": "max", "memory.limit_in_bytes": "-1", "pids.max": "max", "cpu.max": "max",
         "devices.allow": "a *:* rwm", "cgroup.kill": "1", "cgroup.freeze": "1"}  # fmt: skip


def attempts():
    for top in ("/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*/")):
        for name, text in FILES.items():
            yield f"{top}/{name}", written(f"{top}/{name}", text)
        yield f"{top}/sub", lambda top=top: os.mkdir(f"{top}/sub") or "made"


none_of(attempts())
