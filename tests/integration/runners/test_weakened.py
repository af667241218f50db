"""Containers weakened on purpose, one boundary at a time: the probe fails for that, and for nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from runners.sandbox.docker import DockerBackend
from runners.sandbox.docker import backend as docker_backend
from runners.sandbox.docker.create import container
from runners.sandbox.probe import Errand
from runners.sandbox.probe.force import ATTACKS
from runners.sandbox.probe.prober import attack, look

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="what the kernel says is seen by root only"),
]
Weakening = dict[str, Any]

CALLS_OF_AN_OPEN_KERNEL = {"calls.keyctl", "calls.add_key", "calls.unshare_user", "calls.clone_user", "calls.setns"}


@pytest.fixture
def weakened(
    make_backend: Callable[..., DockerBackend], engine_host: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., DockerBackend]:
    """A backend whose engine is asked for less than it should be."""

    def weaken(host: Weakening | None = None, **config: Any) -> DockerBackend:
        def weaker(*arguments: Any) -> dict[str, Any]:
            body = container(*arguments)
            body["HostConfig"] |= host or {}
            return body | config

        monkeypatch.setattr(docker_backend, "container", weaker)
        return make_backend()

    return weaken


@pytest.fixture
def inspected_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for stays the whole list: only what the engine is told is weaker."""
    asked = docker_backend.DockerBackend.inspect

    def inspect(self: DockerBackend, spec: Any, found: Any) -> Any:
        with monkeypatch.context() as whole:
            whole.setattr(docker_backend, "container", container)
            return asked(self, spec, found)

    monkeypatch.setattr(docker_backend.DockerBackend, "inspect", inspect)


def failed(backend: DockerBackend, image: str) -> set[str]:
    return {check.name for check in look(backend, Errand(image, 70, 71, 1)) if not check.ok}


NETWORK = {
    "network.interfaces", "network.routes", "network.metadata", "network.addresses", "kernel.network",
    "kernel.namespaces", "record.network",
}  # fmt: skip


@pytest.mark.usefixtures("inspected_as_asked")
@pytest.mark.parametrize(
    ("weakening", "expected"),
    [
        (
            {"CapDrop": [], "CapAdd": ["SYS_ADMIN"]},
            {"identity.capabilities", "kernel.capabilities", "record.capabilities"},
        ),
        (
            {"ReadonlyRootfs": False},
            {"files.root_read_only", "files.writable_places", "files.mounts", "kernel.mounts", "record.root"},
        ),
        (
            {"Devices": [{"PathOnHost": "/dev/null", "PathInContainer": "/dev/kvm", "CgroupPermissions": "rwm"}]},
            {"devices.harmless", "record.devices"},
        ),
        (
            {"Memory": 0, "MemorySwap": 0, "PidsLimit": 0, "NanoCpus": 0},
            {
                "limits.memory", "limits.processes", "limits.processors", "kernel.bounds", "record.memory",
                "record.processes", "record.processors",
            },
        ),
        ({"Ulimits": []}, {"limits.per_process", "record.per_process"}),
        (
            {"Tmpfs": {"/tmp": "rw,exec,suid,dev", "/workspace": "rw,exec,nosuid,nodev,uid=65532,gid=65532"}},
            {"files.options", "files.sizes", "record.file_systems"},
        ),
    ],
    ids=["capabilities", "writable root", "device", "no limits", "no process limits", "open file systems"],
)  # fmt: skip
def test_what_is_missing_is_what_fails(
    weakened: Callable[..., DockerBackend], sandbox_image: str, weakening: Weakening, expected: set[str]
) -> None:
    assert failed(weakened(weakening), sandbox_image) == expected


@pytest.mark.usefixtures("inspected_as_asked")
def test_a_network_fails_all_that_is_said_of_networks(
    weakened: Callable[..., DockerBackend], sandbox_image: str
) -> None:
    seen = failed(weakened({"NetworkMode": "host", "Dns": [], "DnsSearch": []}, NetworkDisabled=False), sandbox_image)
    host_dependent = {"network.listeners", "network.resolver", "files.mounts", "kernel.mounts", "network.routes",
                      "network.metadata", "network.addresses"}  # fmt: skip
    assert seen >= {"network.interfaces", "kernel.namespaces", "kernel.network", "record.network"}
    assert seen <= NETWORK | host_dependent


@pytest.mark.usefixtures("inspected_as_asked")
def test_without_a_filter_the_kernel_answers(weakened: Callable[..., DockerBackend], sandbox_image: str) -> None:
    seen = failed(weakened({"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]}), sandbox_image)
    assert seen >= {"calls.filtered", "kernel.filtered", "record.seccomp", "calls.ptrace", *CALLS_OF_AN_OPEN_KERNEL}
    assert all(name.startswith("calls.") for name in seen - {"kernel.filtered", "record.seccomp"})


@pytest.mark.usefixtures("inspected_as_asked")
def test_a_socket_of_the_engine_is_seen_from_all_sides(
    weakened: Callable[..., DockerBackend], sandbox_image: str, engine_host: str
) -> None:
    socket = engine_host.removeprefix("unix://")
    seen = failed(weakened({"Binds": [f"{socket}:/run/docker.sock"]}), sandbox_image)
    assert seen == {"surroundings.engine_sockets", "files.mounts", "kernel.mounts", "record.host_paths"}


@pytest.mark.usefixtures("inspected_as_asked")
def test_a_secret_in_the_environment_never_reaches_the_command_and_is_on_record(
    weakened: Callable[..., DockerBackend], sandbox_image: str
) -> None:
    backend = weakened(Env=["PATH=/usr/bin:/bin", "AWS_SECRET_ACCESS_KEY=hunter2"])
    checks = look(backend, Errand(sandbox_image, 70, 71, 1))
    [wrong] = [check for check in checks if not check.ok]
    assert wrong.name == "record.environment"
    assert "AWS_SECRET_ACCESS_KEY" in wrong.evidence
    assert "hunter2" not in str(checks)


@pytest.mark.usefixtures("inspected_as_asked")
def test_root_is_not_nobody(weakened: Callable[..., DockerBackend], sandbox_image: str) -> None:
    seen = failed(weakened(User="0:0"), sandbox_image)
    assert seen >= {"identity.user", "identity.groups", "identity.no_way_to_root", "kernel.user", "record.user"}


def test_attacks_go_through_where_nothing_stops_them(
    weakened: Callable[..., DockerBackend], sandbox_image: str
) -> None:
    open_disks = dict.fromkeys(("/tmp", "/workspace"), "rw,exec,nosuid,nodev,size=64m,mode=1777")
    backend = weakened(
        {"PidsLimit": 0, "Memory": 0, "MemorySwap": 0, "NanoCpus": 0, "Ulimits": [], "Tmpfs": open_disks}
    )
    errand = Errand(sandbox_image, 70, 71, 1)
    passed = {check.name for one in ATTACKS for check in attack(backend, errand, one) if check.ok}
    assert passed == {"force.deadline", "force.output", "force.cancel"}
    assert backend.find() == []
