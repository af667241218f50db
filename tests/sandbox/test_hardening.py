"""What a command finds when it looks around in its sandbox: each boundary seen from inside."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys

import pytest

from images import seccomp
from runners.sandbox.backend import Backend, SandboxLost
from tests.fixtures.engine import MemoryRegistry
from tests.sandbox.inside import python, seen, sh
from tests.sandbox.kinds import connect

pytestmark = pytest.mark.engine

SYSTEM_CALLS = {
    # name: (number on x86_64, number on aarch64, arguments with which an unfiltered kernel would not say EPERM)
    "io_uring_setup": (425, 425, "0, 0"),
    "io_uring_enter": (426, 426, "-1, 0, 0, 0"),
    "keyctl": (250, 219, "0, -3, 0"),
    "add_key": (248, 217, "0, 0, 0, 0, -3"),
    "request_key": (249, 218, "0, 0, 0, -3"),
    "unshare": (272, 97, "0"),
    "setns": (308, 268, "-1, 0"),
    "bpf": (321, 280, "-1, 0, 0"),
    "perf_event_open": (298, 241, "0, 0, -1, -1, 0"),
    "userfaultfd": (323, 282, "1"),
    "ptrace": (101, 117, "0, 0, 0, 0"),
    "process_vm_readv": (310, 270, "os.getpid(), 0, 0, 0, 0, 0"),
    "process_vm_writev": (311, 271, "os.getpid(), 0, 0, 0, 0, 0"),
    "kcmp": (312, 272, "os.getpid(), os.getpid(), 2, 0, 0"),
    "pidfd_getfd": (438, 438, "-1, 0, 0"),
    "name_to_handle_at": (303, 264, "-1, 0, 0, 0, 0"),
    "open_tree": (428, 428, "-1, 0, -1"),
    "mount_setattr": (442, 442, "-1, 0, 0, 0, 0"),
    "mount": (165, 40, "0, 0, 0, 0, 0"),
    "fsopen": (430, 430, "0, -1"),
    "vmsplice": (278, 75, "-1, 0, 0, 0"),
    "memfd_secret": (447, 447, "0"),
    "personality": (135, 92, "0x0040000"),
}


def _status(backend: Backend, image: str) -> dict[str, str]:
    lines = sh(backend, image, "cat /proc/self/status").output.decode().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.mark.every_runtime
def test_a_command_is_nobody_in_particular(backend: Backend, sandbox_image: str) -> None:
    status = _status(backend, sandbox_image)
    assert status["Uid"].split() == ["65532"] * 4
    assert status["Gid"].split() == ["65532"] * 4
    assert status["Groups"] in ("", "65532")
    assert sh(backend, sandbox_image, "id -un; id -gn").output == b"sandbox\nsandbox\n"


@pytest.mark.every_runtime
def test_a_command_has_no_capability_and_can_never_get_one(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    status = _status(backend, sandbox_image)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
        assert int(status[name], 16) == 0, name
    # gVisor's filter is around its kernel, where no sandbox sees it, and its kernel has no more to say.
    of_ours = {"CapAmb": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert {name: status.get(name) for name in of_ours} == (
        {"CapAmb": None, "NoNewPrivs": None, "Seccomp": "0"} if own_kernel else of_ours
    )
    assert sh(backend, sandbox_image, "find / -xdev -perm /6000 2>/dev/null").output == b""


def test_a_command_starts_with_every_signal_at_its_default(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    if own_kernel:  # whose /proc does not tell
        code = "import signal; seen = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]"
        assert seen(backend, sandbox_image, code) == [signal.SIGPIPE, signal.SIGXFSZ]  # Python's own
        return
    status = _status(backend, sandbox_image)
    assert int(status["SigIgn"], 16) == int(status["SigBlk"], 16) == 0


@pytest.mark.every_runtime
def test_only_the_workspace_and_tmp_can_be_written(backend: Backend, sandbox_image: str) -> None:
    code = """
import os
seen = []
for root, folders, _ in os.walk('/'):
    folders[:] = [f for f in folders if os.path.join(root, f) not in ('/proc', '/sys', '/dev')]
    try:
        path = os.path.join(root, '.written'); open(path, 'w').close(); os.remove(path); seen.append(root)
    except OSError:
        pass
"""
    assert sorted(seen(backend, sandbox_image, code)) == ["/tmp", "/workspace"]


def test_the_writable_places_refuse_devices_and_set_user_id(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    mounts = sh(backend, sandbox_image, "cat /proc/self/mounts").output.decode().splitlines()
    options = {line.split()[1]: set(line.split()[3].split(",")) for line in mounts}
    assert "ro" in options["/"]
    for place in ("/workspace", "/tmp", "/dev/shm"):
        # gVisor has no device of this machine, and heeds no set-user-id bit of anybody: no mount says so.
        assert ({"nosuid", "nodev"} <= options[place]) != own_kernel, place
    assert "noexec" not in options["/workspace"] | options["/tmp"]


@pytest.mark.every_runtime
def test_there_is_no_way_to_a_network(backend: Backend, sandbox_image: str, own_kernel: bool) -> None:
    code = """
import os, socket
seen = {'interfaces': sorted(name for _, name in socket.if_nameindex())}
seen['routes'] = open('/proc/net/route').read().splitlines()[1:]
for name, address in (('internet', '192.0.2.1'), ('metadata', '169.254.169.254'), ('bridge', '172.17.0.1')):
    probe = socket.socket(); probe.settimeout(2)
    try:
        probe.connect((address, 80)); seen[name] = 'connected'
    except OSError as refused:
        seen[name] = type(refused).__name__ if refused.errno is None else os.strerror(refused.errno)
try:
    seen['resolved'] = socket.gethostbyname('example.org')
except OSError:
    seen['resolved'] = None
"""
    found = seen(backend, sandbox_image, code)
    assert found["interfaces"] == ["lo"]
    assert found["routes"] == []
    assert found["resolved"] is None
    for target in ("internet", "metadata", "bridge"):
        assert found[target] == ("No route to host" if own_kernel else "Network is unreachable"), target


def test_nothing_of_the_host_is_told(backend: Backend, sandbox_image: str) -> None:
    text = sh(backend, sandbox_image, "hostname; cat /etc/hosts /etc/resolv.conf 2>/dev/null").output.decode()
    assert text.splitlines()[0] == "sandbox"
    assert platform.node() not in text.split()
    assert "nameserver" not in text
    sockets = sh(backend, sandbox_image, "find / -xdev -type s -o -name '*.sock' 2>/dev/null; ls /run /var/run/").output
    assert b"sock" not in sockets


def test_the_environment_is_made_from_nothing(
    backend: Backend, sandbox_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "must-not-be-seen")
    found = seen(backend, sandbox_image, "import os; seen = dict(os.environ)")
    assert set(found) == {"PATH", "HOME", "LANG", "TZ", "PYTHONDONTWRITEBYTECODE"}
    everywhere = sh(backend, sandbox_image, "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'").output
    assert b"must-not-be-seen" not in everywhere


@pytest.fixture(scope="module")
def answers(kind: str, where: str, sandbox_image: str) -> dict[str, str]:
    """What the kernel says to each of SYSTEM_CALLS, all tried in one sandbox."""
    calls = [(name, numbers, arguments) for name, (*numbers, arguments) in SYSTEM_CALLS.items()]
    code = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
seen = {{}}
for name, (amd64, arm64), arguments in {calls!r}:
    number = amd64 if os.uname().machine == 'x86_64' else arm64
    result = libc.syscall(number, *(ctypes.c_long(a) for a in eval('(' + arguments + ',)')))
    seen[name] = errno.errorcode.get(ctypes.get_errno()) if result == -1 else 'allowed'
"""
    backend = connect(kind, where, registry=MemoryRegistry("test-system-calls"))
    found: dict[str, str] = seen(backend, sandbox_image, code)
    backend.close()
    return found


# With every argument -1 a kernel that makes the call says something else, or does it; but for the clock's, which are
# EPERM to everybody without a capability.
CALL_ALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
seen = {}
for name, number in CALLS.items():
    if os.fork() == 0:
        result = libc.syscall(number, *(ctypes.c_long(-1) for _ in range(6)))
        os._exit(ctypes.get_errno() if result == -1 else 0)
    status = os.wait()[1]
    seen[name] = errno.errorcode.get(status >> 8, 'done') if os.WIFEXITED(status) else 'killed'
"""


def test_every_call_that_the_engine_allows_and_we_do_not_is_refused(
    backend: Backend, sandbox_image: str, own_kernel: bool
) -> None:
    if own_kernel:
        pytest.skip("its sandboxes make calls of gVisor's kernel, not of this one")
    calls = seccomp.numbers(platform.machine())
    code = f"CALLS = {calls!r}\n{CALL_ALL}"
    said = seen(backend, sandbox_image, code)
    # No filter is asked about this one by kernels that have it: whoever makes it outside of a probe dies.
    assert said.pop("uretprobe", "killed") in ("killed", "EPERM")
    # runc says of a call that is newer than all it knows that it does not exist, so that libc tries an older one.
    assert said == {name: "ENOSYS" if said[name] == "ENOSYS" and calls[name] > 440 else "EPERM" for name in said}
    assert len(said) >= 18
    # Without the filter most of them say something else: it is the filter that was heard.
    outside = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(sum(said != 'EPERM' for said in seen.values()))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(outside.stdout) > len(calls) / 2


OF_GVISOR = {
    "EINVAL": ("io_uring_setup", "personality"),
    "EFAULT": ("io_uring_enter",),
    "EACCES": ("keyctl", "add_key", "request_key"),
    "ENOTSUP": ("setns", "name_to_handle_at"),
    "ENODEV": ("perf_event_open",),
    "ENOSYS": ("userfaultfd", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "open_tree", "mount_setattr",
               "fsopen", "vmsplice", "memfd_secret"),
    "allowed": ("unshare", "ptrace"),
}  # fmt: skip
"""What gVisor's kernel answers itself. It has no io_uring, keys, bpf and the like; what it has of namespaces and of
ptrace is among its own processes, and never reaches this machine's kernel."""


@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_system_calls_of_escapes_are_refused(answers: dict[str, str], name: str, own_kernel: bool) -> None:
    of_gvisor = {call: answer for answer, calls in OF_GVISOR.items() for call in calls}
    assert answers[name] == (of_gvisor.get(name, "EPERM") if own_kernel else "EPERM")


@pytest.mark.parametrize("flag", ["NEWUSER", "NEWNS", "NEWPID", "NEWNET"])
def test_no_namespace_can_be_made(backend: Backend, sandbox_image: str, flag: str, own_kernel: bool) -> None:
    value = {"NEWUSER": 0x10000000, "NEWNS": 0x20000, "NEWPID": 0x20000000, "NEWNET": 0x40000000}[flag]
    code = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
number = 56 if os.uname().machine == 'x86_64' else 220
seen = []
for flags in ({value} | 17, 17):
    result = libc.syscall(number, ctypes.c_ulong(flags), 0, 0, 0, 0)
    if result == 0: os._exit(0)
    seen.append(errno.errorcode.get(ctypes.get_errno()) if result == -1 else 'allowed')
ctypes.set_errno(0)
libc.syscall(435, 0, 0); seen.append(errno.errorcode.get(ctypes.get_errno()))
"""
    # Without the flag the same call works; clone3, whose flags cannot be filtered, is said not to exist.
    # gVisor has user and mount namespaces of its own.
    first = "allowed" if own_kernel and flag in ("NEWUSER", "NEWNS") else "EPERM"
    assert seen(backend, sandbox_image, code) == [first, "allowed", "ENOSYS"]


@pytest.mark.parametrize(
    ("family", "allowed"),
    [("AF_UNIX", True), ("AF_INET", True), ("AF_INET6", True), ("AF_ALG", False), ("AF_VSOCK", False),
     ("AF_PACKET", False), ("AF_BLUETOOTH", False), ("AF_TIPC", False)],
)  # fmt: skip
def test_only_harmless_socket_families_exist(
    backend: Backend, sandbox_image: str, family: str, allowed: bool, own_kernel: bool
) -> None:
    code = f"""
import errno, socket
try:
    kind = socket.SOCK_SEQPACKET if '{family}' == 'AF_ALG' else socket.SOCK_STREAM
    socket.socket(socket.{family}, kind); seen = 'allowed'
except OSError as refused:
    seen = errno.errorcode[refused.errno]
"""
    refused = "EAFNOSUPPORT" if own_kernel and family != "AF_PACKET" else "EPERM"
    assert seen(backend, sandbox_image, code) == ("allowed" if allowed else refused)


def test_the_32_bit_door_is_shut(backend: Backend, sandbox_image: str, own_kernel: bool) -> None:
    code = """
import ctypes, mmap, os
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
if os.uname().machine != 'x86_64': os.kill(os.getpid(), 31)
page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print('allowed', call())
"""
    result = python(backend, sandbox_image, code)
    if own_kernel:  # it takes the call for one of its own native ones, and for an address that is none
        assert (result.exit_code, result.output) == (0, b"allowed -9\n")
    else:
        assert (result.exit_code, result.signal, result.output) == (None, 31, b"")


def test_a_command_cannot_touch_the_first_process(backend: Backend, sandbox_image: str, own_kernel: bool) -> None:
    code = """
import os, signal
seen = []
for path in ('/proc/1/mem', '/proc/1/fd/2', '/proc/1/environ', '/proc/1/root/etc/passwd'):
    try:
        open(path, 'r+b' if path.endswith('mem') else 'rb').close(); seen.append(path)
    except PermissionError:
        pass
for number in set(range(1, 65)) - {32, 33}:
    os.kill(1, number)
"""
    if own_kernel:
        # gVisor lets it be killed, which is no exit of the command's, and seen, which is why its probe fails.
        with pytest.raises(SandboxLost):
            seen(backend, sandbox_image, code)
    else:
        assert seen(backend, sandbox_image, code) == []


def test_ordinary_work_is_not_hindered(backend: Backend, sandbox_image: str) -> None:
    script = """
set -e
python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1, 2]))'
cat > /tmp/loop.py <<'END'
import socket
server = socket.create_server(("localhost", 0))
socket.create_connection(server.getsockname())
socket.getaddrinfo(socket.gethostname(), 80)
print("loopback")
END
python3 /tmp/loop.py
printf 'int main(void) { return 0; }' > a.c && gcc a.c -o a && ./a && echo compiled
git init -q . && git add a.c && git -c user.name=a -c user.email=a@b commit -qm a && git log --oneline | wc -l
printf 'def test_a(tmp_path):\\n    (tmp_path / "x").write_text("y")\\n' > test_a.py
python3 -m pytest -q -p no:cacheprovider test_a.py | tail -1 | cut -d' ' -f1-2
rg -l main; mkfifo /tmp/f; ln -s a b; python3 -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'print("venv")'
"""
    result = sh(backend, sandbox_image, script, deadline_seconds=60)
    assert result.output.decode().splitlines() == [
        "[1, 2]", "loopback", "compiled", "1", "1 passed", "a.c", "venv",
    ]  # fmt: skip
    assert result.exit_code == 0
