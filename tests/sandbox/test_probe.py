"""Probes of real sandboxes: a good one passes on every backend, and leaves nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from runners.sandbox.backend import RECORDED, Backend, FoundSandbox, ImageUnavailable, SandboxLost
from runners.sandbox.probe import Errand, ProbeStopped, probe, subject_of
from runners.sandbox.probe.force import ATTACKS
from runners.sandbox.probe.outside import CHECKS as OF_KERNEL
from runners.sandbox.probe.outside import look_at_process
from runners.sandbox.probe.prober import INSIDE
from runners.sandbox.probe.seen import Seen, read_report

pytestmark = pytest.mark.engine


NOT_IN_GVISOR = {"identity.no_new_privileges", "calls.filtered", "processes.first_out_of_reach", "limits.processes"}
"""What the gVisor of Debian 12 does not show or does not do: its sandboxes are not proved, and run nothing of a job. A
command there can open what the first process reports through, and end it."""


def _refused(backend: Backend, image: str) -> bool:
    """Whether a probe found what is amiss, or its attacks ended the kernel that it was in."""
    try:
        checks = probe(backend, Errand(image, 70, 71, 1))
    except SandboxLost:
        return backend.find() == []
    return {check.name for check in checks if not check.ok} >= NOT_IN_GVISOR and backend.find() == []


@pytest.mark.every_runtime
def test_a_sandbox_keeps_every_promise(backend: Backend, sandbox_image: str, own_kernel: bool) -> None:
    if own_kernel:
        assert _refused(backend, sandbox_image)
        return
    checks = probe(backend, Errand(sandbox_image, 70, 71, 1))
    assert [(check.name, check.evidence) for check in checks if not check.ok] == []
    names = {check.name for check in checks}
    assert names >= {*INSIDE, "observed.inside", "force.nothing_left"}
    assert names >= {f"record.{point}" for point in RECORDED}
    assert names >= {name for attack in ATTACKS for name in attack.judges}
    assert (names >= set(OF_KERNEL)) == (os.geteuid() == 0)
    assert len(names) == len(checks)
    assert backend.find() == []


def test_what_was_not_seen_is_looked_for_again(
    backend: Backend, sandbox_image: str, own_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own_kernel:
        pytest.skip("its sandboxes fail for what is seen")
    from runners.sandbox.probe import prober

    reads = iter((prober.Seen({}),))
    monkeypatch.setattr(prober, "read_report", lambda data: next(reads, None) or read_report(data))
    assert [
        (check.name, check.evidence) for check in probe(backend, Errand(sandbox_image, 70, 71, 1)) if not check.ok
    ] == []
    assert next(reads, None) is None


def test_what_was_seen_is_not_looked_at_until_it_looks_well(
    backend: Backend, sandbox_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners.sandbox.probe import prober

    first = {"done": False}

    def read(data: bytes) -> Seen:
        seen = read_report(data)
        if first["done"]:
            return seen
        first["done"] = True
        told = dict(seen._told)
        told["file:/proc/net/dev"] += " eth0: 1 2 3\n"
        return Seen(told)

    monkeypatch.setattr(prober, "read_report", read)
    wrong = {check.name for check in probe(backend, Errand(sandbox_image, 70, 71, 1)) if not check.ok}
    assert "network.interfaces" in wrong


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look")
def test_a_descriptor_that_is_closed_while_it_is_looked_at_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: ["999", *listed(folder)])
    told = look_at_process(os.getpid())
    assert told is not None
    assert "open:999" not in told
    assert "open:0" in told
    assert told["file:cgroup"]
    assert {name for name in told if name.startswith("namespace:")} == {
        f"namespace:{name}" for name in ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")
    }


def test_a_stopped_probe_says_nothing_and_leaves_nothing(backend: Backend, sandbox_image: str) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(ProbeStopped):
        probe(backend, Errand(sandbox_image, 70, 71, 1), stop)
    assert time.monotonic() - began < 20
    assert backend.find() == []


def test_an_image_that_is_not_there_says_nothing_of_isolation(backend: Backend) -> None:
    with pytest.raises(ImageUnavailable):
        probe(backend, Errand("sha256:" + "0" * 64, 70, 71, 1))


def test_a_sandbox_that_cannot_be_found_from_outside_has_failed(
    make_backend: Callable[..., Backend], sandbox_image: str, own_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners.sandbox.probe import prober

    backend = make_backend()
    found: list[FoundSandbox] = []
    monkeypatch.setattr(backend, "find", lambda **_: found)
    monkeypatch.setattr(prober, "_START_SECONDS", 0.5)
    checks = prober.look(backend, Errand(sandbox_image, 70, 71, 1))
    wrong = {check.name for check in checks if not check.ok}
    assert {name for name in wrong if name.startswith("record.")} == {f"record.{point}" for point in RECORDED}
    assert not any(check.name.startswith("kernel.") for check in checks)
    assert own_kernel or wrong == {name for name in wrong if name.startswith("record.")}


def test_backends_runtimes_and_images_are_different_subjects(backend: Backend, sandbox_image: str) -> None:
    facts = backend.facts()
    about = subject_of(facts, sandbox_image)
    assert about.key == subject_of(backend.facts(), sandbox_image).key
    assert about.key != subject_of(facts, "sha256:" + "0" * 64).key
    for change in ({"runtime": "other"}, {"version": "0"}, {"kernel": "0"}, {"runtime_version": "0"}, {"host": "/x"}):
        assert about.key != subject_of(facts.model_copy(update=change), sandbox_image).key
    assert about.host["boot"] not in ("", "another machine")
    assert subject_of(facts.model_copy(update={"host": "tcp://far:2375"}), sandbox_image).host["boot"] == (
        "another machine"
    )
