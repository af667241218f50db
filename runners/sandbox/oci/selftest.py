"""One sandbox for the sake of it: whether this machine and this runtime can do what a sandbox is.

It needs no image: the root file system is an empty folder with this machine's own programs in it, read-only, and what
runs is one of them. It goes the way of every sandbox otherwise, with the same bounds, and what it says of itself, what
the kernel says of its cgroup and what is left of it are looked at.
"""

from __future__ import annotations

import os
import secrets
import select
import time
from contextlib import closing
from pathlib import Path

from ledger.errors import PatchyardError, Unfit
from ledger.records.base import Record
from policy.ceilings import Limits
from runners.sandbox.bounds import UID
from runners.sandbox.oci import removal
from runners.sandbox.oci.bundle import Ground, config
from runners.sandbox.oci.launcher import StartFailed
from runners.sandbox.oci.places import Labels
from runners.sandbox.oci.run import Host, complaint
from runners.sandbox.oci.stream import Pipes
from runners.sandbox.oci.unpack import MOUNT_POINTS

_OWNER = "self-test"
_SECONDS = 30.0
_PROGRAM_FOLDERS = ("bin", "lib", "lib32", "lib64", "sbin", "usr")
_COMMAND = ["cat", "/proc/self/status"]
_OF_ANY_KERNEL = {
    "Uid": [str(UID)] * 4, "Gid": [str(UID)] * 4,
    "CapInh": ["0" * 16], "CapPrm": ["0" * 16], "CapEff": ["0" * 16], "CapBnd": ["0" * 16],
}  # fmt: skip
_OF_OUR_KERNEL = _OF_ANY_KERNEL | {"CapAmb": ["0" * 16], "NoNewPrivs": ["1"], "Seccomp": ["2"]}
"""A runtime with a kernel of its own has no such lines: there, its own filter stands before this machine's kernel."""


class SelfTest(Record):
    """A self-test that passed: what took how long, and what was seen."""

    runtime: str
    version: str
    took_ms: int
    status: dict[str, str]
    memory_limit_bytes: int
    pids_limit: int


def self_test(host: Host, *, limits_swap: bool, other_cgroups: tuple[str, ...] | None) -> SelfTest:
    """Run one sandbox that only looks at itself. Raises Unfit with what is wrong."""
    began = time.monotonic()
    labels = Labels(_OWNER, 0, 0, 0, f"self-test-{secrets.token_hex(6)}")
    folder = host.places.sandbox(labels)
    limits = Limits()
    try:
        folder.mkdir(mode=0o700)
        binds = _root_of_this_machine(folder / "rootfs")
        ground = Ground(str(folder / "rootfs"), host.facts.architecture, limits_swap, other_cgroups, binds)
        (folder / "config.json").write_text(config(ground, limits, _COMMAND, host.cgroups.path(labels.name)))
        said = _run(host, labels)
        memory, pids = host.cgroups.bounds(labels.name)
    except (OSError, PatchyardError) as failed:
        raise Unfit(f"a sandbox by {host.runtime.name} fails here: {failed}") from failed
    finally:
        removal.stop_runtimes(host.places, labels)
        remains = removal.remove(host.places, host.cgroups, labels, host.launcher.pid)
    status = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    expected = _OF_OUR_KERNEL if host.runtime.is_transparent else _OF_ANY_KERNEL
    wrong = [name for name, wanted in expected.items() if status.get(name, "").split() != wanted]
    if (memory, pids) != (str(limits.memory_bytes), str(limits.pids)):
        wrong.append(f"limits of memory and processes {memory or 'none'} and {pids or 'none'}")
    if not remains.gone:
        wrong.append(f"what was left: {remains}")
    if wrong:
        raise Unfit(f"a sandbox by {host.runtime.name} is not what it should be here: {', '.join(wrong)}")
    return SelfTest(
        runtime=host.runtime.name,
        version=host.runtime.version,
        took_ms=round(1000 * (time.monotonic() - began)),
        status={name: status[name].strip() for name in expected},
        memory_limit_bytes=int(memory),
        pids_limit=int(pids),
    )


def _root_of_this_machine(root: Path) -> tuple[str, ...]:
    """Make a root file system of mount points and links; the folders to be seen in it come back."""
    for name in ("", *MOUNT_POINTS):
        (root / name).mkdir(mode=0o755)
    binds = []
    for name in _PROGRAM_FOLDERS:
        original = Path("/", name)
        if original.is_symlink():
            (root / name).symlink_to(os.readlink(original))
        elif original.is_dir():
            (root / name).mkdir()
            binds.append(str(original))
    return tuple(binds)


def _run(host: Host, labels: Labels) -> str:
    folder = host.places.sandbox(labels)
    until = time.monotonic() + _SECONDS
    with closing(Pipes.make()) as pipes:
        argv = host.runtime.start(host.places.states, folder, labels.name)
        with closing(host.launcher.launch(argv, folder / "pid", pipes.theirs)) as channel:
            pipes.close_theirs()
            try:
                channel.wait_started(_SECONDS)
            except StartFailed as failed:
                raise StartFailed(f"{failed.message}: {complaint(folder, pipes.errors)}") from failed
            said = b""
            while select.select([pipes.output], [], [], max(0.0, until - time.monotonic()))[0]:
                if not (piece := os.read(pipes.output, 1 << 16)):
                    break
                said += piece
            while channel.status is None and time.monotonic() < until:
                select.select([channel], [], [], 0.1)
                channel.receive()
    return said.decode(errors="replace")
