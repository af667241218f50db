"""The judges of what is seen from outside: the kernel's word on the first process, and the backends' own records."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from runners.sandbox.backend import RECORDED, Inspection, Recorded
from runners.sandbox.docker.create import LocalImage, container
from runners.sandbox.docker.inspect import points as docker_points
from runners.sandbox.oci.bundle import Ground, config
from runners.sandbox.oci.inspect import points as oci_points
from runners.sandbox.probe.outside import CHECKS, has_begun, look_at_process, record_checks
from runners.sandbox.probe.seen import Seen, judged
from tests.unit.probe.good import ASKED, FACTS, IMAGE, LIMITS, SEEN, SPEC, Doctoring, adds, forgets, replaces, tells

GOOD = SEEN["kernel"]
DOCTORED: list[tuple[str, Doctoring]] = [
    ("kernel.user", replaces("file:status", "Uid:\t65532", "Uid:\t0")),
    ("kernel.user", replaces("file:status", "Gid:\t65532\t65532\t65532\t65532", "Gid:\t100\t100\t100\t100")),
    ("kernel.capabilities", replaces("file:status", "CapAmb:\t0000000000000000", "CapAmb:\t0000000000000400")),
    ("kernel.filtered", replaces("file:status", "Seccomp:\t2", "Seccomp:\t0")),
    ("kernel.filtered", replaces("file:status", "NoNewPrivs:\t1", "NoNewPrivs:\t0")),
    *(("kernel.namespaces", tells(f"namespace:{name}", GOOD[f"ours:{name}"])) for name in ("net", "pid", "mnt")),
    ("kernel.namespaces", forgets("ours:ipc")),
    ("kernel.mounts", adds("file:mountinfo", "147 118 254:0 /srv /srv rw,relatime - ext4 /dev/sda1 rw")),
    ("kernel.mounts", replaces("file:mountinfo", "/ / ro,relatime", "/ / rw,relatime")),
    ("kernel.network", adds("file:net/dev", "  eth0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0")),
    ("kernel.network", adds("file:net/route", "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0")),
    ("kernel.open_files", tells("open:7", "/sys/fs/cgroup")),
    ("kernel.open_files", tells("open:7", "socket:[4711]")),
    ("kernel.bounds", tells("bound:memory", "9223372036854771712")),
    ("kernel.bounds", tells("bound:processes", "max")),
]


def failed(told: dict[str, str]) -> set[str]:
    return {check.name for check in judged(CHECKS, Seen(told), ASKED) if not check.ok}


def test_the_kernels_word_on_a_good_sandbox_passes() -> None:
    assert failed(GOOD) == set()


@pytest.mark.parametrize(("name", "doctor"), DOCTORED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(DOCTORED)])
def test_each_boundary_that_is_not_there_fails_its_own_check(name: str, doctor: Doctoring) -> None:
    told = dict(GOOD)
    doctor(told)
    assert failed(told) == {name}


def test_every_check_is_seen_to_fail_and_silence_fails_all() -> None:
    assert {name for name, _ in DOCTORED} == set(CHECKS)
    assert failed({}) == set(CHECKS)


def test_a_sandbox_in_a_user_namespace_is_somebody_else_outside() -> None:
    told = dict(GOOD)
    told["file:status"] = told["file:status"].replace("65532", "165532")
    assert failed(told) == {"kernel.user"}
    assert failed(told | {"file:uid_map": "0 100000 65536\n"}) == set()
    told["file:status"] = told["file:status"].replace("165532", "0")
    assert failed(told | {"file:uid_map": "0 100000 65536\n"}) == {"kernel.user"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is told all of this")
def test_this_very_process_is_no_sandbox() -> None:
    told = look_at_process(os.getpid())
    assert told is not None
    assert not has_begun(told)
    assert {"kernel.user", "kernel.capabilities", "kernel.filtered", "kernel.namespaces", "kernel.mounts"} <= failed(
        told
    )


def test_a_process_that_is_gone_has_proved_nothing() -> None:
    told = look_at_process(1 << 22)
    assert told is None or failed(told) == set(CHECKS)


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_record_that_leaves_out_a_point_has_failed_it() -> None:
    whole = [Recorded(name=name, asked=1, has=1) for name in RECORDED]
    assert all(check.ok for check in record_checks(Inspection(pid=None, points=tuple(whole))))
    checks = record_checks(Inspection(pid=None, points=tuple(whole[1:])))
    assert [check.name for check in checks if not check.ok] == [f"record.{RECORDED[0]}"]
    checks = record_checks(None, "the engine would not say")
    assert len(checks) == len(RECORDED)
    assert {(check.ok, check.evidence) for check in checks} == {(False, "the engine would not say")}


def test_a_difference_is_told_both_ways() -> None:
    [check] = [
        one
        for one in record_checks(Inspection(pid=None, points=(Recorded(name="user", asked="a", has="b"),)))
        if one.name == "record.user"
    ]
    assert (check.ok, check.evidence) == (False, 'has "b"; asked for "a"')


IMAGE_HERE = LocalImage(id="sha256:" + "b" * 64, volumes=(), variables=("SECRET",), knows_localhost=True)
BODY = container(SPEC, "owner", IMAGE_HERE, FACTS, None)
RECORD: dict[str, Any] = {
    "Image": BODY["Image"],
    "Config": {**BODY, "Env": [one for one in BODY["Env"] if "=" in one]},
    "HostConfig": {**BODY["HostConfig"], "Runtime": "runc", "CapAdd": None, "Binds": None, "Devices": []},
    "NetworkSettings": {"Networks": {"none": {}}},
    "Mounts": [],
}


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Something else stands on record."""

    def doctor(record: dict[str, Any]) -> None:
        for step in path[:-1]:
            record = record[step]
        record[path[-1]] = value

    return doctor


@pytest.mark.parametrize(
    ("name", "doctor"),
    [
        ("image", put("Image", value="sha256:" + "c" * 64)),
        ("command", put("Config", "Cmd", value=["-e", "exit"])),
        ("user", put("Config", "User", value="0:0")),
        ("root", put("HostConfig", "ReadonlyRootfs", value=False)),
        ("network", put("HostConfig", "NetworkMode", value="bridge")),
        ("network", put("NetworkSettings", "Networks", value={"bridge": {}})),
        ("network", put("HostConfig", "PortBindings", value={"80/tcp": [{"HostPort": "80"}]})),
        ("capabilities", put("HostConfig", "CapAdd", value=["SYS_ADMIN"])),
        ("capabilities", put("HostConfig", "CapDrop", value=None)),
        ("privileges", put("HostConfig", "Privileged", value=True)),
        ("privileges", put("HostConfig", "GroupAdd", value=["docker"])),
        ("privileges", put("HostConfig", "SecurityOpt", value=BODY["HostConfig"]["SecurityOpt"][1:])),
        ("seccomp", put("HostConfig", "SecurityOpt", value=["no-new-privileges", "seccomp=unconfined"])),
        ("seccomp", put("HostConfig", "SecurityOpt", value=["no-new-privileges"])),
        ("memory", put("HostConfig", "MemorySwap", value=-1)),
        ("processors", put("HostConfig", "NanoCpus", value=0)),
        ("processes", put("HostConfig", "PidsLimit", value=None)),
        ("per_process", put("HostConfig", "Ulimits", value=[])),
        ("file_systems", put("HostConfig", "Tmpfs", value={"/tmp": "rw"})),
        ("host_paths", put("HostConfig", "Binds", value=["/run/docker.sock:/run/docker.sock"])),
        ("host_paths", put("Mounts", value=[{"Type": "volume", "Destination": "/data"}])),
        ("devices", put("HostConfig", "Devices", value=[{"PathOnHost": "/dev/kvm"}])),
        ("environment", put("Config", "Env", value=["SECRET=hunter2"])),
        ("namespaces", put("HostConfig", "PidMode", value="host")),
        ("runtime", put("HostConfig", "Runtime", value="crun")),
    ],
)
def test_what_an_engine_has_on_record_is_held_against_what_was_asked(
    name: str, doctor: Callable[[dict[str, Any]], None]
) -> None:
    assert {point.name for point in docker_points(BODY, RECORD, "runc")} == set(RECORDED)
    assert [point.name for point in docker_points(BODY, RECORD, "runc") if point.asked != point.has] == []
    record = copy.deepcopy(RECORD)
    doctor(record)
    wrong = [point for point in docker_points(BODY, record, "runc") if point.asked != point.has]
    assert [point.name for point in wrong] == [name]
    assert "hunter2" not in str(wrong)


BUNDLE = config(Ground("/rootfs", "x86_64", True, ("/sys/fs/cgroup/blkio",)), LIMITS, ["perl"], "/cgroup")


@pytest.mark.parametrize(
    ("name", "doctor"),
    [
        ("user", put("process", "user", value={"uid": 0, "gid": 0})),
        ("root", put("root", "readonly", value=False)),
        ("image", put("root", "path", value="/")),
        ("network namespaces", put("linux", "namespaces", value=[{"type": "network", "path": "/proc/1/ns/net"}])),
        ("capabilities", put("process", "capabilities", value={"bounding": ["CAP_SYS_ADMIN"]})),
        ("privileges", put("process", "noNewPrivileges", value=False)),
        ("seccomp", put("linux", "seccomp", value={"defaultAction": "SCMP_ACT_ALLOW"})),
        ("memory", put("linux", "resources", "memory", value={})),
        ("processors", put("linux", "resources", "cpu", value={})),
        ("processes", put("linux", "resources", "pids", value={"limit": -1})),
        ("per_process", put("process", "rlimits", value=[])),
        ("devices", put("linux", "devices", value=[{"path": "/dev/kvm"}])),
        ("environment", put("process", "env", value=["SECRET=hunter2"])),
        ("command", put("process", "args", value=["sh"])),
        ("nothing_else", put("hooks", value={"prestart": [{"path": "/bin/sh"}]})),
        ("nothing_else", put("linux", "maskedPaths", value=[])),
        ("nothing_else", put("process", "apparmorProfile", value="unconfined")),
    ],
)
def test_a_bundle_is_held_against_one_made_anew(name: str, doctor: Callable[[dict[str, Any]], None]) -> None:
    in_force = (str(LIMITS.memory_bytes), str(LIMITS.pids))
    good = list(oci_points(BUNDLE, BUNDLE, runtime="crun", bounds=in_force))
    assert {point.name for point in good} >= set(RECORDED)
    assert [point.name for point in good if point.asked != point.has] == []
    bundle = json.loads(BUNDLE)
    doctor(bundle)
    seen = oci_points(BUNDLE, json.dumps(bundle), runtime="crun", bounds=in_force)
    wrong = [point for point in seen if point.asked != point.has]
    assert {point.name for point in wrong} == set(name.split())
    assert "hunter2" not in str(wrong)


@pytest.mark.parametrize(
    ("name", "mount"),
    [
        ("host_paths", {"destination": "/s", "type": "bind", "source": "/run/docker.sock", "options": ["bind"]}),
        ("file_systems", {"destination": "/more", "type": "tmpfs", "source": "tmpfs", "options": []}),
    ],
)
def test_a_mount_more_shows(name: str, mount: dict[str, Any]) -> None:
    bundle = json.loads(BUNDLE)
    bundle["mounts"].append(mount)
    seen = oci_points(BUNDLE, json.dumps(bundle), runtime="crun", bounds=(str(LIMITS.memory_bytes), str(LIMITS.pids)))
    assert [point.name for point in seen if point.asked != point.has] == [name]


def test_limits_that_are_not_in_force_show() -> None:
    seen = oci_points(BUNDLE, BUNDLE, runtime="crun", bounds=("max", "64"))
    assert [point.name for point in seen if point.asked != point.has] == ["in_force"]


def test_the_image_is_the_one_asked_for() -> None:
    assert SPEC.image == IMAGE
