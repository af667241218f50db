"""A second supervisor that waits for the first one's death: `python -m patchyard.local.standby HOME`.

It blocks on the lock that the supervisor holds. The kernel frees that lock when its holder dies, however it dies; then
this process becomes the supervisor, adopts all services and starts a standby of its own. So there is no process of the
stack whose death would need a person.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

from patchyard.local.plan import RunFolder, Service
from patchyard.local.processes import STACK_TAG, SUPERVISOR, tags

STANDBY = "standby"
_STAGE = 99


def standby_service(home: Path) -> Service:
    """The standby as a service of the supervisor: the first one to be stopped, or it would take over."""
    return Service(
        name=STANDBY,
        argv=(sys.executable, "-P", "-m", "patchyard.local.standby", str(home)),
        environment=dict(os.environ),
        working_folder="/",
        log=str(home / "logs" / f"{SUPERVISOR}.log"),
        stage=_STAGE,
        stop_signal=signal.SIGKILL,
        stop_seconds=5,
    )


def main() -> None:
    """Waits, then turns into the supervisor, or ends if the stack was stopped meanwhile."""
    home = Path(sys.argv[1])
    if os.environ.get(STACK_TAG) != str(home):
        sys.exit("started by the supervisor only")
    run = RunFolder(home / "run")
    # The successor may be told to read the plan before it can listen; it reads it anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    lock = os.open(run.supervisor_lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if run.plan.exists():
        os.set_inheritable(lock, True)
        argv = [sys.executable, "-P", "-m", "patchyard.local.supervisor", str(home), str(lock)]
        os.execve(sys.executable, argv, dict(os.environ) | tags(home, SUPERVISOR))  # noqa: S606


if __name__ == "__main__":
    main()
