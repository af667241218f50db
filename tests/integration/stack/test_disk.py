"""What commands say and do when the disk is too full, and what is kept on it within its quotas."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from images.lock import home_lock
from images.oci_layout import Layout
from ledger.errors import NoRoom
from patchyard.backends import ImagesOnly
from patchyard.keeping import Kept, open_mirrors
from patchyard.room import require_local_room
from patchyard.settings import Settings, load_settings
from runners.sandbox.oci import OciBackend
from runners.sandbox.oci.runtime import installed
from tests.fixtures.disk import small_disk

needs_oci = pytest.mark.skipif(os.geteuid() != 0 or not installed(), reason="needs root, and crun or runc")
BATCH = "name: b\njobs: []\n"


def _patchyard(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    sources = str(Path(sys.modules["patchyard"].__path__[0]).parent)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": sources, "PATCHYARD_HOME": str(folder / "home"), **environment}
    return subprocess.run(
        [sys.executable, "-m", "patchyard.cli", *arguments], env=env, cwd=folder, capture_output=True, text=True
    )


def test_run_refuses_to_start_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "batch.yaml").write_text(BATCH)
    done = _patchyard(tmp_path, "run", "batch.yaml", PATCHYARD_DISK_MIN_FREE_GB="900000")
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert line.startswith(f"patchyard: EDISK: {tmp_path}: ")
    assert line.endswith("are needed; make room, or set PATCHYARD_HOME to a folder on another disk")
    assert not (tmp_path / "home").exists()
    assert _patchyard(tmp_path, "run", "batch.yaml").returncode == 2, "with room, it is the batch that is wrong"


def test_doctor_and_ps_say_that_the_disk_is_full(tmp_path: Path) -> None:
    full = {"PATCHYARD_DISK_MIN_FREE_INODES": "900000000"}
    done = _patchyard(tmp_path, "doctor", "--json", **full)
    assert done.returncode == 3
    [finding] = [one for one in json.loads(done.stdout)["findings"] if one["subject"] == "disk"]
    assert finding["state"] == "missing"
    assert finding["found"].startswith(f"EDISK: {tmp_path}: ")
    assert finding["remedy"]
    done = _patchyard(tmp_path, "ps", "--json", **full)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert "workers begin nothing until there is room" in done.stderr
    assert "EDISK" not in _patchyard(tmp_path, "ps").stderr


def test_a_small_disk_is_full_by_what_is_free_on_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        settings = _settings(disk, disk_min_free_gb=0.004, disk_min_free_inodes=0)
        require_local_room(settings)
        (disk / "x").write_bytes(bytes(5_000_000))
        with pytest.raises(NoRoom, match=f"{disk}: 3.4 MB are free and 4.0 MB are needed"):
            require_local_room(settings)


def _settings(home: Path, **given: Any) -> Settings:
    return load_settings(home=home, docker_host=None, **given)


def _mirror(home: Path, digit: str, used_at: float, size_bytes: int = 1_000_000) -> Path:
    folder = home / "mirrors" / (digit * 32)
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(bytes(size_bytes))
    (home / "mirrors" / f"{digit * 32}.use").touch()
    os.utime(home / "mirrors" / f"{digit * 32}.use", (used_at, used_at))
    return folder


def test_mirrors_go_before_the_disk_is_full_and_no_more_of_them_than_need_to(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        old, used, new = (_mirror(disk, digit, when) for digit, when in (("b", 1), ("a", 2), ("c", 3)))
        settings = _settings(disk, disk_min_free_gb=0.004, disk_min_free_inodes=0)
        require_local_room(settings)  # 5.4 MB are free: enough to begin, and less than half as much again
        kept = Kept(settings, open_mirrors(settings))
        done = kept.tidy_mirrors()
        assert [item.name for item in done.removed] == ["b" * 32]
        assert (old.exists(), used.exists(), new.exists(), done.enough) == (False, True, True, True)
        assert kept.tidy_mirrors().removed == ()


def test_mirrors_are_listed_and_pruned_by_command(tmp_path: Path) -> None:
    for digit, when in (("b", 1), ("a", 2)):
        _mirror(tmp_path / "home", digit, when)
    listed = json.loads(_patchyard(tmp_path, "mirrors", "list", "--json").stdout)
    assert [(one["kind"], one["name"], one["used_at"]) for one in listed] == [
        ("mirror", "b" * 32, 1),
        ("mirror", "a" * 32, 2),
    ]
    done = _patchyard(tmp_path, "mirrors", "prune", "--max-gb", "0.0015")
    assert (done.returncode, done.stdout) == (0, f"mirror {'b' * 32} 1.0 MB\n"), done.stderr
    assert done.stderr == "1.0 MB freed; 1.0 MB left of at most 0.0015 GB\n"
    assert "last used" in _patchyard(tmp_path, "mirrors", "list").stdout


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, sandbox_layout: Layout) -> Kept:
    """A home with the sandbox image built, and an OCI backend that has nothing."""
    settings = _settings(tmp_path / "home", images_lock=tmp_path / "none.toml")
    folder = home_lock(settings.home).parent
    folder.mkdir(parents=True)
    place = folder / f"sandbox-python-{sandbox_layout.manifest_digest[7:23]}"
    shutil.copytree(sandbox_layout.folder, place, copy_function=os.link)
    return Kept(settings, open_mirrors(settings), OciBackend(settings.home, ImagesOnly()))


@needs_oci
@pytest.mark.slow
def test_images_that_can_be_had_again_go_and_are_brought_back(kept: Kept, sandbox_layout: Layout) -> None:
    assert kept.backend is not None
    digest = sandbox_layout.manifest_digest
    assert not kept.backend.has_image(digest)
    assert kept.restock(digest)
    assert kept.backend.has_image(digest)
    assert not kept.restock(digest), "it is there"
    assert not kept.restock("sha256:" + "0" * 64), "nobody has it"
    assert [item.kind for item in kept.tidy_images({digest}, 0).removed] == ["image"], "the layout stays for the job"
    assert kept.restock(digest)
    done = kept.tidy_images(None, 0)
    assert [item.kind for item in done.removed] == ["image"], "and where nobody knows of the jobs"
    assert not done.enough
    assert [item.kind for item in kept.tidy_images(set(), 0).removed] == ["layout"]
    assert list(kept.images()) == []
    kept.backend.close()


@needs_oci
@pytest.mark.slow
def test_an_image_that_could_not_be_had_again_stays_as_long_as_it_has_a_name_or_a_job(
    kept: Kept, sandbox_layout: Layout
) -> None:
    assert kept.backend is not None
    digest = sandbox_layout.manifest_digest
    kept.restock(digest)
    assert kept.layouts.drop(digest)
    for live in ({digest}, None):
        assert kept.tidy_images(live, 0).removed == ()
    named = f'[images.mine]\ndigest = "{digest}"\nconfig = "{digest}"\ndistribution = "d"\narchitecture = "a"\n'
    home_lock(kept.settings.home).write_text(f"{named}built = 2026-01-01\npackages = 1\n")
    assert kept.tidy_images(set(), 0).removed == ()
    home_lock(kept.settings.home).unlink()
    assert [item.kind for item in kept.tidy_images(set(), 0).removed] == ["image"]
    kept.backend.close()


@needs_oci
def test_an_image_is_not_unpacked_on_a_full_disk(kept: Kept, sandbox_layout: Layout) -> None:
    full = Kept(kept.settings.model_copy(update={"disk_min_free_gb": 900_000}), kept.mirrors, kept.backend)
    with pytest.raises(NoRoom):
        full.restock(sandbox_layout.manifest_digest)
    assert kept.backend is not None
    assert not kept.backend.has_image(sandbox_layout.manifest_digest)
    kept.backend.close()


@needs_oci
@pytest.mark.slow
def test_images_are_pruned_by_command(kept: Kept, sandbox_layout: Layout, tmp_path: Path) -> None:
    kept.restock(sandbox_layout.manifest_digest)
    assert kept.backend is not None
    kept.backend.close()
    (tmp_path / "none.toml").touch()
    none = {"PATCHYARD_IMAGES_LOCK": str(tmp_path / "none.toml"), "PATCHYARD_SANDBOX_BACKEND": "oci"}
    done = _patchyard(tmp_path, "images", "prune", "--max-gb", "0", "--json", **none)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["kind"] for one in told["removed"]] == ["image"]
    assert (told["enough"], told["kept_bytes"] > 0) == (False, True), "no stack runs, so a job may wait for the layout"
    assert kept.layouts.find(sandbox_layout.manifest_digest) is not None


def test_what_killed_builders_and_evictors_of_layouts_left_is_taken_away(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "home", images_lock=tmp_path / "none.toml")
    folder = home_lock(settings.home).parent
    for name in (".building-x", ".building-new", ".importing-x", ".importing-new", ".old-1-x"):
        (folder / name).mkdir(parents=True)
    for name in (".building-x", ".importing-x"):
        os.utime(folder / name, (0, 0))
    Kept(settings, open_mirrors(settings)).tidy_images(set())
    assert sorted(path.name for path in folder.iterdir()) == [".building-new", ".importing-new"]
