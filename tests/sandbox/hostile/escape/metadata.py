"""Connects to what gives clouds' machines their credentials, to the machine that it runs on, and to private networks.

Fooled: a connection is made.
"""

import socket

from attempts import none_of

ADDRESSES = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254", "172.17.0.1", "172.18.0.1",
            "10.0.0.1",
             "192.168.0.1", "192.168.65.2", "10.96.0.1", "1.1.1.1", "2606:4700::1111", "0251.0376.0251.0376",
             "0xa9fea9fe",
             "::ffff:169.254.169.254", "0.0.0.0", "127.0.0.1", "::1")  # fmt: skip


def reach(address, port):
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(*found[:3]) as one:
        one.settimeout(1)
        one.connect(found[4])
        return address


def attempt(address, port):
    try:
        return reach(address, port)
    except socket.gaierror:
        return None


none_of(
    (f"{address}:{port}", lambda a=address, p=port: attempt(a, p)) for address in ADDRESSES for port in (80, 2375, 22)
)
