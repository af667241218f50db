"""What passes a sandbox's proxy: HTTP that means one thing, and TLS that is for whom it was asked for."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.sandbox.networked import Networked
from tests.sandbox.outside import NAME, Listener, Mirror

pytestmark = pytest.mark.engine

# -- HTTP that says two things at once --------------------------------------------------------------------------------


def test_smuggled_requests_reach_nobody(networked: Networked, mirror: Mirror) -> None:
    place = f"{NAME}:{mirror.port}"
    url = f"http://{place}/"
    inner = "GET /smuggled HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
    code = f"""
inner = b'{inner}'
tries = {{
    'two lengths': request('POST', '{url}', 'Host: x', 'Content-Length: 0', 'Transfer-Encoding: chunked',
                           body=b'0\\r\\n\\r\\n' + inner),
    'lengths that differ': request('POST', '{url}', 'Host: x', 'Content-Length: 0', 'Content-Length: %d' % len(inner),
                                   body=inner),
    'a length of words': request('POST', '{url}', 'Host: x', 'Content-Length: +0', body=inner),
    'another coding': request('POST', '{url}', 'Host: x', 'Transfer-Encoding: xchunked', body=inner),
    'a space before the colon': request('POST', '{url}', 'Host: x', 'Content-Length : 3', body=b'abc' + inner),
    'a header with a line break': request('GET', '{url}', 'Host: x\\rX: y'),
    'a NUL': request('GET', '{url}', 'Host: x', 'X: a\\0b'),
    'a target with a space': request('GET', '{url} x', 'Host: x'),
    'no host': b'GET {url} HTTP/1.1\\r\\n\\r\\n',
    'two hosts': request('GET', '{url}', 'Host: x', 'Host: y'),
    'a body of a CONNECT': request('CONNECT', '{place}', 'Host: x', 'Content-Length: 3', body=b'abc'),
    'a path only': request('GET', '/'),
    'https in the clear': request('GET', 'https://{place}/'),
    'ftp': request('GET', 'ftp://{place}/'),
    'user information': request('GET', 'http://user:pw@{place}/'),
    'a fragment': request('GET', 'http://{place}/#b'),
    'a fragment for a path': request('GET', 'http://{place}#@169.254.169.254/'),
    'a backslash': request('GET', 'http://{place}\\\\@169.254.169.254/'),
    'a whole megabyte': request('GET', '{url}', 'Host: x', 'X: ' + 'y' * 1_000_000),
    'no HTTP at all': b'\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01\\xfc\\x03\\x03',
    'version 2': b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n',
}}
seen = {{}}
for name, data in tries.items():
    try:
        seen[name] = asked_head(data).partition(' ')[2][:3]
    except OSError as cut:
        seen[name] = '4xx'  # refused while it was still being sent
"""
    found = networked.seen(code, place)
    assert {name: status for name, status in found.items() if status[:1] != "4" and status != "501"} == {}
    assert mirror.asked == []


def test_what_goes_on_was_written_anew(networked: Networked, mirror: Mirror) -> None:
    """The server is told the host that was asked for, and nothing of what is between neighbours; what follows the
    request is for nobody."""
    place = f"{NAME}:{mirror.port}"
    code = f"""
headers = (
    'Host: evil.test', 'Connection: close, X-Private, Content-Length', 'X-Private: 1', 'Upgrade: websocket',
    'Proxy-Authorization: Basic eDp5', 'TE: trailers', 'X-Other: 2', 'Transfer-Encoding: chunked')
body = b'3\\r\\nabc\\r\\n2;x=y\\r\\nde\\r\\n0\\r\\nTrailer: 1\\r\\n\\r\\n'
second = request('GET', 'http://{place}/second')
seen = asked(request('POST', 'http://{place}/a%20b?c', *headers, body=body + second))
"""
    answer = networked.seen(code, place)
    assert answer.endswith("you asked for /a%20b?c")
    assert "connection: close" in answer.lower()
    (one,) = mirror.asked
    assert one["line"] == "POST /a%20b?c HTTP/1.1"
    assert one["body"] == b"abcde"
    headers = dict(header.lower().split(": ", 1) for header in one["headers"])
    assert headers == {"host": place, "x-other": "2", "transfer-encoding": "chunked", "connection": "close"}


def test_answers_of_each_kind_come_through(networked: Networked, mirror: Mirror) -> None:
    place = f"{NAME}:{mirror.port}"
    code = f"""
with opened() as one:
    one.sendall(request('POST', 'http://{place}/wait', 'Host: x', 'Expect: 100-continue', 'Content-Length: 3'))
    go_on = one.recv(100).decode()
    one.sendall(b'abc')
    answer = said(one).decode()
seen = {{
    'go on': go_on,
    'a body that waits': answer,
    'chunked': asked(request('GET', 'http://{place}/gzip')),
    'chunked, for an old client': asked(b'GET http://{place}/gzip HTTP/1.0\\r\\n\\r\\n'),
    'head': asked(request('HEAD', 'http://{place}/head')),
}}
"""
    found = networked.seen(code, place)
    assert found["chunked"].endswith("\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
    assert found["chunked, for an old client"].endswith("\r\n\r\nabcdefg")
    assert found["head"].endswith("\r\n\r\n")
    assert "content-length: 19" in found["head"].lower()
    assert found["go on"].startswith("HTTP/1.1 100 ")
    assert found["a body that waits"].endswith("you asked for /wait")
    assert mirror.asked[0]["body"] == b"abc"


def test_a_server_that_answers_with_nonsense_is_not_passed_on(
    networked: Networked, listen: Callable[..., Listener]
) -> None:
    answers = iter(
        (
            b"not http at all\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Length: 11\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
            b"",
        )
    )

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(next(answers))

    place = f"{NAME}:{listen(answer).port}"
    code = f"seen = [asked(request('GET', 'http://{place}/'))[:13] for _ in range(4)]"
    assert networked.seen(code, place) == ["HTTP/1.1 502 "] * 4
    assert [outcome for _, _, outcome in networked.told()] == ["malformed"] * 4


# -- TLS that is for somebody else ------------------------------------------------------------------------------------

HELLO = """
import ssl
def hello(name, **options):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    ahead, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(ahead, out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
def with_extension(data, number, body):
    # at the end of the extensions, with all lengths corrected
    record, message = data[:5], bytearray(data[5:])
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at:at + 2], 'big')
    at += 1 + message[at]
    more = number.to_bytes(2, 'big') + len(body).to_bytes(2, 'big') + body
    message += more
    message[at:at + 2] = (int.from_bytes(message[at:at + 2], 'big') + len(more)).to_bytes(2, 'big')
    message[1:4] = (len(message) - 4).to_bytes(3, 'big')
    return record[:3] + len(message).to_bytes(2, 'big') + bytes(message)
def answered(*pieces):
    one = tunnel(place)
    try:
        for piece in pieces:
            one.sendall(piece)
        return len(one.recv(10))
    except ConnectionError:
        return 0
"""


def test_a_tunnel_greets_the_host_that_was_asked_for_or_nobody(networked: Networked, tls_mirror: Mirror) -> None:
    place = f"{NAME}:{tls_mirror.port}"
    code = f"""
{HELLO}
place = '{place}'
right = hello('{NAME}')
def record(part):
    return right[:3] + len(part).to_bytes(2, 'big') + part
split = [record(right[5:25]), record(right[25:])]
seen = {{
    'right': answered(right),
    'upper case': answered(hello('MIRROR.TEST')),
    'byte by byte': answered(*(right[at:at + 1] for at in range(len(right)))),
    'two records': answered(*split),
    'another name': answered(hello('another.test')),
    'a name below': answered(hello('files.{NAME}')),
    'no name': answered(hello(None)),
    'hidden': answered(with_extension(right, 0xfe0d, b'x' * 40)),
    'two names': answered(with_extension(right, 0, b'\\0\\x0f\\0\\0\\x0canother.test')),
    'an unknown extension': answered(with_extension(right, 0x5a5a, b'x')),
    'lengths that lie': answered(right[:43] + b'\\xff' + right[44:]),
    'no greeting': answered(b'\\x16\\x03\\x01\\x00\\x04\\x02\\x00\\x00\\x00'),
}}
"""
    found = networked.seen(code, place)
    good = {"right", "upper case", "byte by byte", "two records", "an unknown extension"}
    assert {name for name, answered in found.items() if answered} == good
    told = [one.outcome for one in networked.registry.requests if one.outcome != "allowed"]
    assert told == ["other_name"] * 3 + ["hidden_name"] + ["malformed"] * 3
    refused = [one for one in networked.registry.requests if one.outcome != "allowed"]
    assert {one.up_bytes for one in refused} == {0}  # not a byte of a wrong greeting went out
