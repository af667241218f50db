"""Opens sockets below the level of a connection: raw, packet, netlink that changes something, AF_ALG, vsock.

Fooled: one that is more than a loopback's can be opened, or an interface or route is made.
"""

import socket
import struct

from attempts import none_of

NEW_LINK, NEW_ROUTE = 16, 24


def change(kind):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(2)
        body = (
            struct.pack("BxHiII", 0, 0, 1, 1, 1)
            if kind == NEW_LINK
            else struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0)
        )
        link.sendto(struct.pack("IHHII", 16 + len(body), kind, 5, 1, 0) + body, (0, 0))
        code = struct.unpack_from("i", link.recv(4096), 16)[0]
        if code:
            raise OSError(-code, "refused")
        return "changed"


def opened(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()
    return "opened"


none_of(
    [
        ("icmp", lambda: opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
        ("raw", lambda: opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)),
        ("raw 6", lambda: opened(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)),
        ("packet", lambda: opened(socket.AF_PACKET, socket.SOCK_RAW, 3)),
        ("alg", lambda: opened(38, socket.SOCK_SEQPACKET)),
        ("vsock", lambda: opened(40, socket.SOCK_STREAM)),
        ("bluetooth", lambda: opened(31, socket.SOCK_RAW, 1)),
        ("interface", lambda: change(NEW_LINK)),
        ("route", lambda: change(NEW_ROUTE)),
    ]
)
