"""What runs the sandboxes of a stack: what was asked for, else the fastest that works; nothing else silently."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.lock import home_lock
from images.oci_layout import Layout
from ledger.connect import Database
from ledger.errors import BadInput, Unfit
from ledger.probes import latest_probes
from ledger.sandboxes import live_sandboxes
from patchyard.backends import Chosen, choose_backend
from patchyard.local.deletion import delete_home
from patchyard.local.engine_choice import fits
from patchyard.local.fitness import examine
from patchyard.local.stack import ensure_up, stop
from patchyard.probing import probe_now
from patchyard.proving import choose_proven
from patchyard.settings import Settings, load_settings
from runners.sandbox.oci import runtime as runtime_module
from runners.sandbox.oci.cgroups import read_cgroups
from runners.sandbox.oci.places import Places
from runners.sandbox.oci.runtime import installed
from tests.fixtures.engine import lend_images
from tests.integration.stack.conftest import eventually
from tests.integration.stack.test_services import Commands, submit_a_long_run

needs_oci = pytest.mark.skipif(os.geteuid() != 0 or not installed(), reason="needs root, and crun or runc")


def _settings(home: Path, **given: Any) -> Settings:
    return load_settings(**({"home": home / "home", "docker_host": None, "sandbox_backend": "auto"} | given))


def test_a_stack_with_another_backend_or_runtime_is_not_what_is_meant(tmp_path: Path) -> None:
    runs = Chosen("oci", "crun", "")
    assert fits(_settings(tmp_path), runs)
    assert fits(_settings(tmp_path, sandbox_runtime="crun"), runs)
    assert not fits(_settings(tmp_path, sandbox_runtime="runc"), runs)
    assert not fits(_settings(tmp_path, sandbox_backend="docker"), runs)


def test_a_backend_that_this_version_has_not_is_a_finding(tmp_path: Path) -> None:
    settings = _settings(tmp_path, sandbox_backend="kubernetes")
    [found] = [finding for finding in examine(settings) if finding.subject == "sandboxes"]
    assert found.state == "missing"


@pytest.mark.parametrize("command", [("run", "batch.yaml"), ("up",), ("probe",)])
def test_a_backend_that_this_version_has_not_is_said_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    env = dict(os.environ) | {"PATCHYARD_HOME": str(tmp_path / "home"), "PATCHYARD_SANDBOX_BACKEND": "kubernetes"}
    argv = [sys.executable, "-m", "patchyard.cli", *command]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr == (
        "patchyard: the sandbox backend kubernetes is not available in this version; "
        "set PATCHYARD_SANDBOX_BACKEND to auto, docker or oci\n"
    )
    assert not (tmp_path / "home").exists()


@needs_oci
def test_auto_takes_a_runtime_without_an_engine(tmp_path: Path) -> None:
    chosen = choose_backend(_settings(tmp_path))
    assert (chosen.backend, chosen.runtime) == ("oci", installed()[0])
    assert "the fastest that works here" in chosen.why
    assert read_cgroups(Places.of(tmp_path / "home").cgroup).names() == set()


@needs_oci
@pytest.mark.parametrize("backend", ["auto", "oci"])
def test_a_runtime_that_is_asked_for_is_taken(tmp_path: Path, backend: str) -> None:
    wanted = installed()[-1]
    chosen = choose_backend(_settings(tmp_path, sandbox_backend=backend, sandbox_runtime=wanted))
    assert (chosen.backend, chosen.runtime) == ("oci", wanted)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"docker_host": "unix:///no/engine.sock"}, "an engine's address is set"),
        ({"sandbox_backend": "docker"}, "PATCHYARD_SANDBOX_BACKEND says so"),
        ({"sandbox_runtime": "none-such"}, "no such program"),
    ],
)
def test_auto_takes_an_engine_where_one_is_named_or_nothing_else_goes(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    chosen = choose_backend(_settings(tmp_path, **given))
    assert chosen.backend == "docker"
    assert why in chosen.why


@needs_oci
def test_what_is_asked_for_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such program"):
        choose_backend(_settings(tmp_path, sandbox_backend="oci", sandbox_runtime="none-such"))
    broken = tmp_path / "crun"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo crun version 0 && exit\nexit 1\n')
    broken.chmod(0o755)
    with pytest.raises(Unfit, match="a sandbox by crun fails here"):
        choose_backend(_settings(tmp_path, sandbox_backend="oci", sandbox_runtime=str(broken)))
    assert choose_backend(_settings(tmp_path, sandbox_runtime=str(broken))).backend == "docker"


@pytest.fixture
def weak_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a runtime, the first of those that are preferred: all is well with it until an image is run."""
    programs = tmp_path / "programs"
    programs.mkdir()
    runc = shutil.which("runc", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    if runc is None:
        pytest.skip("runc is not installed")
    (programs / "weak-runc").write_text(
        f"""#!/bin/sh
for word in "$@"; do [ "$before" = --bundle ] && bundle=$word; before=$word; done
case "$bundle" in
  *self-test* | "") ;;
  *) sed -i 's/"noNewPrivileges": *true/"noNewPrivileges":false/' "$bundle/config.json" ;;
esac
exec {runc} "$@"
"""
    )
    (programs / "weak-runc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(runtime_module, "PREFERRED", ("weak-runc", "runc"))
    return "weak-runc"


@pytest.fixture
def with_image(tmp_path: Path, sandbox_layout: Layout) -> Settings:
    """Settings of a home where the usual image was built."""
    settings = _settings(tmp_path, sandbox_backend="auto")
    folder = home_lock(settings.home).parent
    folder.mkdir(parents=True)
    settings.home.chmod(0o711)
    place = folder / f"sandbox-python-{sandbox_layout.manifest_digest[7:23]}"
    shutil.copytree(sandbox_layout.folder, place, copy_function=os.link)
    lines = [f'digest = "{sandbox_layout.manifest_digest}"', f'config = "{sandbox_layout.config_digest}"']
    lines += ['distribution = "debian-12"', 'architecture = "amd64"', "built = 2026-01-01", "packages = 1"]
    home_lock(settings.home).write_text("[images.sandbox-python]\n" + "\n".join(lines) + "\n")
    lend_images(settings.home, sandbox_layout)
    return settings


@needs_oci
@pytest.mark.slow
def test_auto_passes_over_a_runtime_whose_probe_fails(
    weak_runtime: str, with_image: Settings, database: Database, sandbox_layout: Layout
) -> None:
    assert choose_backend(with_image).name == f"oci/{weak_runtime}", "a simple sandbox by it is well"
    said: list[str] = []
    chosen = choose_proven(with_image, database, said.append)
    assert chosen.name == "oci/runc"
    [tried] = chosen.tried
    assert tried.name == f"oci/{weak_runtime}"
    assert "its probe failed: " in tried.why
    assert "identity.no_new_privileges" in tried.why or "record.privileges" in tried.why
    assert any(line.startswith(f"sandboxes: not oci/{weak_runtime}, its probe failed: ") for line in said)
    probes = {probe.runtime: probe.ok for probe in latest_probes(database, image=sandbox_layout.manifest_digest)}
    assert probes == {weak_runtime: False, "runc": True}
    said.clear()
    assert choose_proven(with_image, database, said.append).name == "oci/runc"
    assert len(said) == 1, "the ledger knows it now, and nothing is probed again"


@needs_oci
@pytest.mark.slow
def test_auto_takes_the_engine_when_no_runtimes_probe_passes(
    weak_runtime: str, with_image: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "PREFERRED", (weak_runtime,))
    chosen = choose_proven(with_image, database, lambda _line: None)
    assert (chosen.backend, [tried.name for tried in chosen.tried]) == ("docker", [f"oci/{weak_runtime}"])
    assert "without an engine it does not go: its probe failed" in chosen.why


@needs_oci
@pytest.mark.slow
def test_a_probe_goes_on_to_the_next_and_says_what_was_tried(
    weak_runtime: str, with_image: Settings, sandbox_layout: Layout
) -> None:
    said: list[str] = []
    probed = probe_now(with_image, None, None, said.append)
    assert (probed.subject.runtime, probed.failed) == ("runc", [])
    assert [one.subject.runtime for one in probed.before] == [weak_runtime]
    assert [tried.name for tried in probed.tried] == [f"oci/{weak_runtime}"]
    assert any("trying the next" in line for line in said)
    asked = probe_now(with_image, None, weak_runtime, said.append)
    assert (asked.subject.runtime, bool(asked.failed)) == (weak_runtime, True), "what is asked for is not replaced"


@needs_oci
def test_doctor_says_what_was_tried(weak_runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Path(os.environ["PATH"].split(":")[0]) / weak_runtime
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo runc version 0 && exit\nexit 1\n')
    findings = {finding.subject: finding for finding in examine(_settings(tmp_path))}
    assert findings["sandboxes"].found.startswith("oci: the fastest that works here: runc")
    assert findings[f"tried oci/{weak_runtime}"].state == "note"
    assert "a sandbox by weak-runc fails here" in findings[f"tried oci/{weak_runtime}"].found


@needs_oci
@pytest.mark.slow
@pytest.mark.parametrize("command", ["up", "doctor"])
def test_a_machine_with_neither_is_unfit_and_told_what_to_do(tmp_path: Path, command: str) -> None:
    """In a view of the machine in which nobody can execute the programs."""
    programs = [shutil.which(name, path="/usr/local/bin:/usr/sbin:/usr/bin") for name in ("dockerd", *installed())]
    hidden = "".join(f"mount --bind /dev/null {program}; " for program in programs if program)
    python = f"{sys.executable} -m patchyard.cli {command}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{hidden} exec {python}"],
        env={"PATH": os.environ["PATH"], "PATCHYARD_HOME": str(tmp_path / "home"), "PYTHONPATH": _sources()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "there is no OCI runtime here" in said
    assert "there is no dockerd to start" in said
    assert "apt-get install" in said


def _sources() -> str:
    return str(Path(sys.modules["patchyard"].__path__[0]).parent)


@pytest.fixture
def commands(sandbox_layout: Layout) -> Iterator[Commands]:
    """`patchyard` with a home of its own and no engine anywhere."""
    folder = Path(tempfile.mkdtemp(prefix="patchyard-test-"))
    folder.chmod(0o711)
    lend_images(folder / ".patchyard", sandbox_layout)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    made = Commands(folder, kept | {"PYTHONPATH": _sources()})
    yield made
    made.run("down")
    shutil.rmtree(folder)


@needs_oci
@pytest.mark.slow
@pytest.mark.parametrize("killed", [(), ("worker-sandbox",)])
def test_a_stack_without_an_engine_leaves_no_sandbox_behind(
    commands: Commands, sandbox_layout: Layout, killed: tuple[str, ...]
) -> None:
    up = commands.run("up", "--json")
    assert up.returncode == 0, up.stderr
    running = json.loads(up.stdout)
    places = Places.of(commands.folder / ".patchyard")
    assert (running["sandbox_backend"], running["docker_host"]) == ("oci", None)
    assert running["engine"] == f"oci:{places.folder.parent}"
    assert "engine" not in commands.ps()
    submit_a_long_run(commands, sandbox_layout.manifest_digest)
    cgroups = read_cgroups(places.cgroup)

    def at_work() -> bool:
        return any(cgroups.processes(labels.name) for labels in places.all())

    eventually(at_work, 40)
    for service in killed:
        names = {labels.name for labels in places.all()}
        os.kill(commands.ps()[service]["pid"], signal.SIGKILL)
        eventually(lambda names=names: not any(cgroups.processes(name) for name in names), 5)
    down = commands.run("down")
    assert (down.returncode, down.stdout) == (0, "nothing is left running\n"), down.stderr
    assert list(places.all()) == []
    assert cgroups.names() == set()
    assert not [root for root in cgroups.hierarchies if (root / places.cgroup).exists()]
    database_url = json.loads(commands.run("up", "--no-wait", "--json").stdout)["database_url"]
    with Database(database_url) as db:
        assert live_sandboxes(db) == []


@needs_oci
@pytest.mark.slow
def test_a_stack_keeps_its_backend_until_it_is_told_otherwise(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    settings = _settings(tmp_path)
    said: list[str] = []
    try:
        first = ensure_up(settings, wait=False, say=said.append)
        assert first.engine == f"oci:{(tmp_path / 'home').resolve()}"
        assert any(line.startswith("sandboxes: oci, the fastest that works here") for line in said)
        said.clear()
        again = ensure_up(settings, wait=False, apply_changes=True, say=said.append)
        assert (again.engine, again.sandbox_runtime) == (first.engine, first.sandbox_runtime)
        assert said == []
    finally:
        assert not stop(settings)
        assert delete_home(settings, said.append) == (), "pytest's folders are closed, so its data lie elsewhere"
