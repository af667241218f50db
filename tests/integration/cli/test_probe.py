"""`patchyard probe` on a real engine, and what `patchyard doctor` says of it afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.probes import latest_probes
from patchyard import probing
from patchyard.probing import ProbesOnly, _ProbesRegistry
from runners.sandbox.docker import DockerBackend
from runners.sandbox.docker import backend as docker_backend
from runners.sandbox.docker.create import container
from runners.sandbox.probe import program
from runners.sandbox.spec import SandboxSpec

pytestmark = [pytest.mark.engine, pytest.mark.unproved]


@pytest.fixture(autouse=True)
def _engine(place, engine_host, sandbox_image, monkeypatch):
    monkeypatch.setenv("PATCHYARD_DOCKER_HOST", engine_host)
    lock = place / "lock.toml"
    lock.write_text(lock.read_text().replace("sha256:" + "a" * 64, sandbox_image))


def isolation(patchyard) -> dict[str, Any]:
    findings = patchyard("doctor", "--json").json["findings"]
    return next(finding for finding in findings if finding["subject"] == "isolation")


def test_the_evidence_is_shown_and_kept(patchyard, ledger, sandbox_image):
    assert isolation(patchyard)["state"] == "note"
    probed = patchyard("probe", "--json")
    assert probed.status == 0
    row = probed.json
    assert (row["ok"], row["image"], row["image_name"], row["backend"]) == (
        True, sandbox_image, "sandbox-python", "docker"
    )  # fmt: skip
    assert {frozenset(check) for check in row["checks"]} == {frozenset(["name", "ok", "evidence"])}
    assert len(row["checks"]) > 80
    [kept] = latest_probes(ledger, image=sandbox_image)
    assert (kept.id, kept.ok, len(kept.checks)) == (row["probe_id"], True, len(row["checks"]))
    assert row["versions"].keys() >= {"docker", "containerd"}
    assert all(row["versions"].values())
    assert row["tried"] == []
    found = isolation(patchyard)
    assert found["state"] == "ok"
    assert f"{len(kept.checks)} checks passed" in found["found"]


def test_a_failure_is_named_and_refuses_the_image(patchyard, ledger, sandbox_image, monkeypatch):
    def weaker(*arguments: Any) -> dict[str, Any]:
        body = container(*arguments)
        body["HostConfig"]["ReadonlyRootfs"] = False
        return body

    monkeypatch.setattr(docker_backend, "container", weaker)
    probed = patchyard("probe", "--image", sandbox_image)
    assert probed.status == 1
    line = next(line for line in probed.out.splitlines() if line.startswith("files.root_read_only"))
    assert "FAILED" in line
    assert "mounted writable" in line
    assert "checks failed in" in probed.out
    [kept] = latest_probes(ledger)
    assert "files.root_read_only" in kept.failed
    found = isolation(patchyard)
    assert found["state"] == "missing"
    assert "files.root_read_only" in found["found"]


def test_versions_with_known_holes_are_warned_of(patchyard, ledger, monkeypatch):
    old = {"docker": "27.0.1", "containerd": "1.5.9", "runc": "1.1.11"}
    monkeypatch.setattr(DockerBackend, "versions", lambda _self: old)
    monkeypatch.setattr(probing, "package_here", lambda _program: None)
    probed = patchyard("probe", "--json").json
    assert probed["ok"], "a warning is no failed check"
    assert probed["versions"] == old
    assert any(line.startswith("runc 1.1.11: CVE-2024-21626 by its version") for line in probed["warnings"])
    assert any(line.startswith("containerd 1.5.9: CVE-2022-23648 by its version") for line in probed["warnings"])
    shown = patchyard("probe").out
    assert "versions docker 27.0.1, containerd 1.5.9, runc 1.1.11" in shown
    assert "warning: runc 1.1.11: CVE-2024-21626" in shown
    findings = patchyard("doctor", "--json").json["findings"]
    [known] = [finding for finding in findings if finding["subject"] == "known escapes"]
    assert known["state"] == "note"
    assert "CVE-2024-21626" in known["found"]
    assert known["remedy"]


def test_what_cannot_be_probed_is_one_line(patchyard, place, monkeypatch):
    tag = patchyard("probe", "--image", "python:3.12")
    assert (tag.status, len(tag.err.splitlines())) == (2, 1)
    absent = patchyard("probe", "--image", "sha256:" + "c" * 64)
    assert absent.status == 2
    assert "not in the engine" in absent.err
    runtime = patchyard("probe", "--runtime", "no-such-runtime")
    assert runtime.status == 2
    assert "no runtime no-such-runtime" in runtime.err
    monkeypatch.setenv("PATCHYARD_DOCKER_HOST", "tcp://127.0.0.1:1")
    away = patchyard("probe")
    assert (away.status, len(away.err.splitlines())) == (3, 1)


def test_what_a_killed_probe_left_goes_with_the_next(patchyard, place, engine_host, sandbox_image):
    gone = 1 << 22  # no process can have this number
    backend = DockerBackend(engine_host, _ProbesRegistry())
    spec = SandboxSpec.model_validate({
        "image": sandbox_image, "command": program.argv("x86_64"), "deadline_seconds": 60, "job_id": 0,
        "step_id": gone, "fence": 0, "purpose": "probe",
    })  # fmt: skip
    body = container(spec, "", backend._image(spec), backend.facts(), None)
    with backend._connections.client() as client:
        body["Labels"]["patchyard.sandbox"] = "patchyard-probe-killed"
        client.create_container_from_config(body, None)
    assert len(backend.find(step_id=gone)) == 1
    assert patchyard("probe", "--json").status == 0
    assert backend.find(step_id=gone) == []
    with pytest.raises(ProbesOnly):
        backend.run(spec.model_copy(update={"purpose": "job"}), [])
    backend.close()
