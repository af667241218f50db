"""The way into a sandbox's network namespace: whether there is one, and then held, so that neither its process's number
nor the namespace can become another's while it is used."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from runners.sandbox.backend import NoNetwork, SandboxLost
from runners.sandbox.spec import SandboxPlace

_SHOWN = 3


def require_network(place: SandboxPlace, runtime: str, *, transparent: bool, is_here: bool = True) -> None:
    """Raises NoNetwork where a sandbox cannot have what `place` asks for. `transparent` runtimes leave a container's
    network to this machine's kernel; `is_here` says that the sandbox would be on this machine."""
    if place.network is None:
        return
    asked = f"network {', '.join(place.network.allow[:_SHOWN])}{' …' if len(place.network.allow) > _SHOWN else ''}"
    if not transparent:
        raise NoNetwork(f"{asked} is not to be had with {runtime}: its network is its own", remedy="use runc or crun")
    if not is_here:
        raise NoNetwork(f"{asked} is not to be had: the engine is on another machine", remedy="use one of this machine")
    if os.geteuid() != 0:
        raise NoNetwork(f"{asked} is not to be had: the worker is not root", remedy="run it as root")


@dataclass(frozen=True)
class Entrance:
    """Descriptors of a sandbox's `first` process and of its network `namespace`."""

    first: int
    namespace: int


@contextmanager
def entrance(pid: int, is_of_the_sandbox: Callable[[int], bool]) -> Iterator[Entrance]:
    """That of the process `pid`, if it is the sandbox's. Raises SandboxLost when it has ended, or is another's."""
    with ExitStack() as held:
        try:
            first = os.pidfd_open(pid)
            held.callback(os.close, first)
            # What belonged to the sandbox while the process was held, and lives after this was opened, is its own.
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, namespace)
        except OSError as gone:
            raise SandboxLost("the sandbox has ended before its network was opened") from gone
        if not is_of_the_sandbox(pid) or _has_ended(first):
            raise SandboxLost("the sandbox has ended before its network was opened")
        yield Entrance(first, namespace)


def _has_ended(process: int) -> bool:
    watch = select.poll()
    watch.register(process, select.POLLIN)
    return bool(watch.poll(0))
