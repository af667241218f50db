"""The process that serves one command's network: the few moments as root, and then the proxy as nobody.

Started ahead, it has imported all it needs when the sandbox is there. Then it is given a descriptor of the sandbox's
first process and one of its network namespace, opens the listening socket in there, goes back, and gives up root for
good. It ends when the sandbox's first process does, when the worker says so or is gone, and at a time in any case.

Messages over the socket of the worker, JSON, one a packet: from the worker, one with the two descriptors; to it
`listens` or `failed` and `unfit`, then `request` for each that has ended, and as the last word `left_out`, or `broken`
for a defect of our own.
"""

from __future__ import annotations

import asyncio
import ctypes
import encodings.punycode  # noqa: F401  (codecs are looked for at their first use, when this process may not look)
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

from policy.network import Ceiling
from runners.sandbox.egress.bounds import Bounds
from runners.sandbox.egress.dial import Rules
from runners.sandbox.egress.exchange import MAX_DETAIL
from runners.sandbox.egress.proxy import Proxy

UID = GID = 65_531
"""Nobody else's: not that of commands in sandboxes, and a handle for a firewall's rules."""
MESSAGE_BYTES = 1 << 13
BACKLOG = 16
OPEN_FILES = 512
_CLONE_NEWNET = 0x4000_0000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1
_LOOPBACK = "lo"

_libc = ctypes.CDLL(None, use_errno=True)


class NotThere(Exception):
    """The sandbox's namespace is not what it has to be. `unfit` says that no other would be, on this machine."""

    def __init__(self, why: str, *, unfit: bool = False) -> None:
        super().__init__(why)
        self.unfit = unfit


def listen_in(namespace: int, address: tuple[str, int]) -> socket.socket:
    """A listening socket in the network namespace of that descriptor; this process is back in its own on return.

    Raises NotThere.
    """
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.sameopenfile(own, namespace):
            raise NotThere("the sandbox has the network of this machine")
        _enter(namespace)
        try:
            return _listening(address)
        finally:
            _enter(own)
    finally:
        os.close(own)


def _listening(address: tuple[str, int]) -> socket.socket:
    interfaces = sorted(name for _, name in socket.if_nameindex())
    if interfaces != [_LOOPBACK]:
        raise NotThere(f"the sandbox has the interfaces {', '.join(interfaces) or 'none'}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        asked = struct.pack("16sh22x", _LOOPBACK.encode(), 0)
        (flags,) = struct.unpack("16xh22x", fcntl.ioctl(listener, _SIOCGIFFLAGS, asked))
        if not flags & _IFF_UP:
            raise NotThere("the loopback of the sandbox is down")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as refused:
        listener.close()
        raise NotThere(f"{address[0]}:{address[1]} in the sandbox: {refused.strerror}") from refused
    except BaseException:
        listener.close()
        raise
    return listener


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise NotThere(
            f"the network namespace of the sandbox cannot be entered ({os.strerror(number)})",
            unfit=number == errno.EPERM,
        )


def give_up_root() -> None:
    """Become a user that has nothing, and can become nobody else."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setgroups([])
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if _libc.prctl(option, value, 0, 0, 0) != 0:
            raise NotThere(f"prctl: {os.strerror(ctypes.get_errno())}")


async def serve(control: socket.socket, first: int, listener: socket.socket, asked: dict[str, Any]) -> None:
    """Serve until the first process has ended, or the worker has had enough."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    control.setblocking(False)
    loop.add_reader(control, over.set)  # nothing more is ever said there but the end
    loop.add_reader(first, over.set)
    loop.call_later(asked["lasts_seconds"], over.set)
    telling = asyncio.Lock()

    async def tell(message: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody is there to hear it, which ends all this at once
            async with telling:
                await loop.sock_sendall(control, json.dumps(message).encode())

    permitted = Ceiling.read(asked["allow"], asked["private"])
    rules = Rules(permitted.allow, permitted.private)
    proxy = Proxy(listener, rules, Bounds(**asked["bounds"]), lambda request: tell({"request": request}))
    serving = loop.create_task(proxy.serve())
    await asyncio.wait([serving, loop.create_task(over.wait())], return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    await asyncio.wait([serving])
    if (defect := serving.exception()) is not None:
        await tell({"broken": f"{type(defect).__name__}: {defect}"[:MAX_DETAIL]})
    else:
        await tell({"left_out": serving.result()})


def main() -> None:
    """The process: the descriptor of the worker's socket, what may be reached, and where to listen, as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    asked = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return
    try:
        first, namespace = descriptors
        listener = listen_in(namespace, (asked["host"], asked["port"]))
        os.close(namespace)
        give_up_root()
    except (NotThere, OSError) as failed:
        unfit = isinstance(failed, NotThere) and failed.unfit
        control.send(json.dumps({"failed": str(failed), "unfit": unfit}).encode())
        return
    control.send(b'{"listens": true}')
    try:
        asyncio.run(serve(control, first, listener, asked))
    finally:
        os._exit(0)  # a resolver that does not answer is not waited for
