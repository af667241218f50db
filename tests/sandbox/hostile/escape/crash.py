"""Crashes with a core limit raised as far as it goes, so that the kernel writes a core file or starts its handler.

Fooled: a core file stands in the workspace or in /tmp, or the core limit could be raised.
"""

import os
import resource
import signal

from attempts import none_of


def raise_limit():
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
    return "raised"


def core():
    before = {place: set(os.listdir(place)) for place in ("/tmp", ".")}
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    _, status = os.waitpid(pid, 0)
    new = [name for place, names in before.items() for name in set(os.listdir(place)) - names]
    return new or ("dumped" if os.WCOREDUMP(status) else None)


def no_limit():
    try:
        return raise_limit()
    except ValueError:
        return None


none_of([("limit", no_limit), ("core", core)])
