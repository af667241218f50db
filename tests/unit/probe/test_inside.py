"""The judges of what was seen inside: each goes red for what it is there for, and for silence."""

from __future__ import annotations

import json

import pytest

from runners.sandbox import wrapper
from runners.sandbox.probe import program
from runners.sandbox.probe.prober import INSIDE
from runners.sandbox.probe.program import TRIES
from runners.sandbox.probe.seen import Seen, judged, read_report
from tests.unit.probe.good import ASKED, SEEN, Doctoring, adds, both, forgets, replaces, tells

GOOD = SEEN["inside"]
STATUS, MOUNTS, LIMITS = "file:/proc/self/status", "file:/proc/self/mountinfo", "file:/proc/self/limits"
CGROUP = "file:/sys/fs/cgroup"
EMPTY = "0000000000000000"

DOCTORED: list[tuple[str, Doctoring]] = [
    ("identity.user", replaces(STATUS, "Uid:\t65532\t65532\t65532\t65532", "Uid:\t65532\t65532\t0\t65532")),
    ("identity.user", replaces(STATUS, "Gid:\t65532", "Gid:\t0")),
    ("identity.groups", replaces(STATUS, "Groups:\t65532 ", "Groups:\t65532 999 ")),
    ("identity.no_way_to_root", tells("become_root", "done")),
    ("identity.capabilities", replaces(STATUS, f"CapBnd:\t{EMPTY}", "CapBnd:\t0000000000002000")),
    ("identity.capabilities", replaces("file:/proc/1/status", f"CapEff:\t{EMPTY}", "CapEff:\t00000000a80425fb")),
    ("identity.no_new_privileges", replaces(STATUS, "NoNewPrivs:\t1", "NoNewPrivs:\t0")),
    ("calls.filtered", replaces(STATUS, "Seccomp:\t2", "Seccomp:\t0")),
    *((f"calls.{call}", tells(f"call:{call}", "done")) for call in TRIES),
    *((f"calls.{call}", tells(f"call:{call}", "22")) for call in ("bpf", "keyctl", "io_uring_setup")),
    ("calls.other_abi", tells("call:x32_getpid", "done")),
    ("limits.memory", tells(f"{CGROUP}/memory/memory.limit_in_bytes", "9223372036854771712\n")),
    ("limits.swap", both(adds("file:/proc/swaps", "/swapfile file 2097148 0 -2"),
                         tells(f"{CGROUP}/memory/memory.memsw.limit_in_bytes", "9223372036854771712\n"))),
    ("limits.swap", both(adds("file:/proc/swaps", "/swapfile file 2097148 0 -2"),
                         forgets(f"{CGROUP}/memory/memory.memsw"))),
    ("limits.processes", tells(f"{CGROUP}/pids/pids.max", "max\n")),
    ("limits.processors", tells(f"{CGROUP}/cpu/cpu.cfs_quota_us", "-1\n")),
    ("limits.per_process", replaces(LIMITS, "Max core file size        0  ", "Max core file size        unlimited")),
    ("limits.per_process", replaces(LIMITS, "Max open files            256                  256",
                                    "Max open files            256                  524288")),
    ("files.root_read_only", replaces(MOUNTS, "/ / ro,relatime", "/ / rw,relatime")),
    ("files.writable_places", tells("write:/var/tmp", "done")),
    ("files.writable_places", tells("write:/workspace", "30")),
    ("files.writable_places", forgets("write:/etc")),
    ("files.sizes", tells("space:/tmp", "4096,262144,262143,262143,6144,6142")),
    ("files.sizes", tells("space:/workspace", "4096,4096,4096,4096,3085457,4095")),
    ("files.options", replaces(MOUNTS, "/tmp rw,nosuid,nodev", "/tmp rw,nosuid")),
    ("files.mounts", adds(MOUNTS, "147 118 254:0 /home/me /mnt ro,relatime - ext4 /dev/sda1 rw")),
    ("files.mounts", adds(MOUNTS, "147 118 0:24 /docker.sock /run/docker.sock rw,nosuid,nodev - tmpfs tmpfs rw")),
    ("files.mounts", replaces(MOUNTS, "/ /dev rw,nosuid - tmpfs", "/ /dev rw,nosuid - devtmpfs")),
    ("files.unmodified", tells("modify:/etc/passwd", "done")),
    ("files.unmodified", forgets("modify:/sys", "modify:/proc/sys")),
    ("kernel_files.read_only files.mounts", replaces(MOUNTS, "/proc/sys ro,", "/proc/sys rw,")),
    ("kernel_files.read_only", replaces(MOUNTS, "/sys/fs/cgroup/memory ro,", "/sys/fs/cgroup/memory rw,")),
    ("kernel_files.masked", tells("read:/proc/kcore", "done")),
    ("kernel_files.masked", forgets("read:/proc/keys")),
    ("kernel_files.own_cgroups", tells("cgroups:/sys/fs/cgroup/blkio", "system.slice user.slice")),
    ("processes.first_out_of_reach", tells("read:/proc/1/environ", "done")),
    ("processes.first_out_of_reach", both(tells("modify:/proc/1/mem", "2"))),
    ("devices.harmless", adds("devices", "c 1:1 /dev/mem")),
    ("devices.harmless", adds("devices", "b 254:0 /dev/sda")),
    ("devices.harmless", replaces("devices", "c 1:3 /dev/null", "c 1:1 /dev/null")),
    ("devices.harmless", tells("devices", "")),
    ("devices.none_made", tells("make_device", "done")),
    ("network.interfaces", adds("file:/proc/net/dev", "  eth0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0")),
    ("network.interfaces", tells("file:/proc/net/dev", "")),
    ("network.routes", adds("file:/proc/net/route", "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0")),
    ("network.routes", adds("file:/proc/net/ipv6_route",
                            f"{'0' * 32} 00 {'0' * 32} 00 fe80 00000400 00000001 00000000 00000003     eth0")),
    ("network.listeners", adds("file:/proc/net/tcp", "0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 12345")),
    ("network.metadata", tells("connect:169.254.169.254:80:tcp", "115")),
    ("network.metadata", forgets("connect:[fd00")),
    ("network.addresses", tells("connect:172.17.0.1:2375:tcp", "111")),
    ("network.addresses", tells("connect:8.8.8.8:53:udp", "done")),
    ("network.addresses", forgets("connect:10.")),
    ("network.resolver", tells("resolve", "done")),
    ("network.resolver", tells("resolve", "signal 14")),
    ("network.resolver", both(forgets("error:/etc/resolv.conf", "file:/etc/resolv.conf"),
                              tells("file:/etc/resolv.conf", "nameserver 10.0.0.2\n"))),
    ("surroundings.engine_sockets", tells("socket:/run/docker.sock", "13")),
    ("surroundings.engine_sockets", tells("sockets", "/run/other.sock")),
    ("surroundings.engine_sockets", forgets("socket:/run")),
    ("surroundings.environment", tells("variable:AWS_SECRET_ACCESS_KEY", "unexpected")),
    ("surroundings.environment", tells("variable:PATH", "changed")),
    ("surroundings.environment", forgets("variable:TZ")),
    ("processes.own_only", adds("processes", "2 0 kthreadd")),
    ("processes.own_only", replaces("file:/proc/1/cmdline", "patchyard", "/sbin/init")),
    ("processes.own_only", tells("pid", "4711")),
    ("processes.user_namespace", tells("file:/proc/self/uid_map", "")),
]  # fmt: skip


def failed(told: dict[str, str]) -> set[str]:
    return {check.name for check in judged(INSIDE, Seen(told), ASKED) if not check.ok}


def test_a_sandbox_that_keeps_its_promises_passes() -> None:
    assert failed(GOOD) == set()


@pytest.mark.parametrize(("name", "doctor"), DOCTORED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(DOCTORED)])
def test_each_boundary_that_is_not_there_fails_its_own_check(name: str, doctor: Doctoring) -> None:
    told = dict(GOOD)
    doctor(told)
    assert failed(told) == set(name.split())


def test_every_check_is_seen_to_fail() -> None:
    assert {name.split()[0] for name, _ in DOCTORED} == set(INSIDE)


def test_silence_fails_every_check() -> None:
    checks = judged(INSIDE, Seen({}), ASKED)
    assert len(checks) == len(INSIDE)
    assert not any(check.ok for check in checks)
    assert all("not observed" in check.evidence for check in checks)


def test_what_cannot_be_read_is_not_taken_for_good() -> None:
    nonsense = Seen(dict.fromkeys(GOOD, "\x00 ,;: nonsense\n\n  a"))
    assert not any(check.ok for check in judged(INSIDE, nonsense, ASKED))


@pytest.mark.parametrize("cgroups", [1, 2])
def test_limits_are_read_from_both_kinds_of_hosts(cgroups: int) -> None:
    told = dict(GOOD)
    if cgroups == 2:
        forgets(f"{CGROUP}/memory/", f"{CGROUP}/pids/", f"{CGROUP}/cpu/")(told)
        values = {"memory.max": str(256 << 20), "memory.swap.max": "0", "pids.max": "64", "cpu.max": "100000 100000"}
        told |= {f"{CGROUP}/{file}": f"{value}\n" for file, value in values.items()}
    told["file:/proc/swaps"] += "/swapfile file 2097148 0 -2\n"
    assert failed(told) == set()
    if cgroups == 2:
        assert failed(told | {f"{CGROUP}/memory.swap.max": "max"}) == {"limits.swap"}
        assert failed(told | {f"{CGROUP}/cpu.max": "max 100000"}) == {"limits.processors"}


def lines(told: dict[str, str]) -> list[str]:
    pairs = [(name, value) for name, value in told.items() if name != "end"]
    return [json.dumps({"name": n, "value": v}) for n, v in [*pairs, ("end", str(len(pairs)))]]


def test_a_whole_report_is_read() -> None:
    assert failed_of("\n".join(lines(GOOD))) == set()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[:-1],
        lambda rows: rows[5:],
        lambda rows: [*rows, rows[0]],
        lambda rows: [*rows[:3], rows[2], *rows[3:-1], json.dumps({"name": "end", "value": str(len(rows))})],
        lambda rows: [rows[0][:-3], *rows[1:]],
        lambda rows: ["null", *rows[1:]],
        lambda rows: [json.dumps({"name": "id", "value": 7}), *rows[1:]],
        lambda rows: [],
    ],
    ids=["no end", "no beginning", "more after the end", "a name twice", "no JSON", "no object", "no text", "nothing"],
)
def test_a_report_that_is_not_whole_is_none(spoil: object) -> None:
    assert callable(spoil)
    assert failed_of("\n".join(spoil(lines(GOOD)))) == set(INSIDE)


def failed_of(report: str) -> set[str]:
    return {check.name for check in judged(INSIDE, read_report(report.encode()), ASKED) if not check.ok}


def test_a_secret_in_the_environment_is_not_told() -> None:
    told = GOOD | {"variable:AWS_SECRET_ACCESS_KEY": "unexpected"}
    [check] = [one for one in judged(INSIDE, Seen(told), ASKED) if one.name == "surroundings.environment"]
    assert check.evidence == "AWS_SECRET_ACCESS_KEY is unexpected"


def test_the_program_knows_the_wrappers_name() -> None:
    assert f"$0 = '{program.FIRST_PROCESS}';" in wrapper.WRAPPER
