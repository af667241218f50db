"""Workers on a disk that is full, fills up, or loses what was kept on it: they wait, they say so, and go on."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.batches import request_cancel
from ledger.reads import job_steps
from runners.workspace.source import Mirrors
from tests.fixtures.disk import small_disk
from tests.integration.worker.conftest import make_repository
from tests.integration.worker.yard import Yard, until

LIST = {"tool": "list_files", "args": {}}
NOWHERE = "tcp://127.0.0.1:1"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=16) as folder:
        yield folder


def _worker(yard: Yard, home: Path, floor_gb: float = 0.004, **environment: str) -> object:
    limits = {"PATCHYARD_DISK_MIN_FREE_GB": str(floor_gb), "PATCHYARD_DISK_MIN_FREE_INODES": "10"}
    return yard.worker(PATCHYARD_DOCKER_HOST=NOWHERE, PATCHYARD_HOME=str(home), **limits | environment)


def _fill(disk: Path, leave_bytes: int) -> Path:
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - leave_bytes))
    return ballast


def test_a_worker_on_a_full_disk_begins_nothing_and_goes_on_when_there_is_room(yard: Yard, disk: Path) -> None:
    ballast = _fill(disk, 1_000_000)
    yard.scheduler()
    worker = _worker(yard, disk)
    [ref] = yard.submit([LIST, LIST, {"final": "done"}])
    until(lambda: worker.says("disk_full"))
    [told] = [line for line in worker.lines() if line["event"] == "disk_full"]
    assert told["code"] == "EDISK"
    assert f"{disk}: 1.0 MB are free and 4.0 MB are needed" in told["why"]
    time.sleep(5)  # several rounds of it
    step = yard.steps(ref)[1]
    assert (step.kind, step.state, step.attempt, step.fence) == ("act", "ready", 0, 0)
    ballast.unlink()
    yard.wait_for_end(ref, seconds=60)
    assert worker.says("disk_has_room")
    assert {step.attempt for step in yard.steps(ref)} == {1}
    assert not {"step_given_back", "step_failed", "worker_error"} & set(yard.events(ref))
    assert len([line for line in worker.lines() if line["event"] == "disk_full"]) == 1
    yard.in_order(ref)


def test_a_job_can_be_cancelled_on_a_full_disk(yard: Yard, disk: Path) -> None:
    _fill(disk, 1_000_000)
    yard.scheduler()
    worker = _worker(yard, disk)
    [ref] = yard.submit([LIST, {"final": "done"}])
    until(lambda: worker.says("disk_full"))
    request_cancel(yard.db, by="test", job_id=yard.job(ref).id)
    yard.wait_for_end(ref, seconds=60)
    assert yard.job(ref).reason == "cancelled_by_user"


def test_too_few_inodes_are_a_full_disk_too(yard: Yard, tmp_path: Path) -> None:
    with small_disk(tmp_path / "few", megabytes=64, inodes=200) as disk:
        yard.scheduler()
        worker = _worker(yard, disk, PATCHYARD_DISK_MIN_FREE_INODES="150")
        for number in range(100):
            (disk / str(number)).touch()
        [ref] = yard.submit([LIST, {"final": "done"}])
        until(lambda: worker.says("disk_full"))
        [told] = [line for line in worker.lines() if line["event"] == "disk_full"]
        assert "more files fit and room for 150 is needed" in told["why"]
        for number in range(100):
            (disk / str(number)).unlink()
        yard.wait_for_end(ref, seconds=60)
        yard.in_order(ref)


def test_a_disk_that_fills_up_in_the_middle_is_an_attempt_that_failed_for_it(
    yard: Yard, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    yard.repository = make_repository(tmp_path_factory.mktemp("big"), {"a.txt": os.urandom(3_000_000)})
    with small_disk(tmp_path / "small", megabytes=2) as disk:
        yard.scheduler()
        _worker(yard, disk, floor_gb=0.0)
        [ref] = yard.submit([LIST, {"final": "done"}])
        until(lambda: "step_failed" in yard.events(ref))
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        yard.wait_for_end(ref, seconds=90)
        act = job_steps(yard.db, yard.job(ref).id)[1]
        assert act.state == "done"
        assert act.attempt > 1
        yard.in_order(ref)


def test_mirrors_that_are_evicted_in_the_middle_of_jobs_are_fetched_again(yard: Yard, tmp_path: Path) -> None:
    home = tmp_path / "home"
    yard.scheduler()
    worker = yard.worker(PATCHYARD_DOCKER_HOST=NOWHERE, PATCHYARD_HOME=str(home), PATCHYARD_MIRRORS_MAX_GB="0")
    until(lambda: (home / "mirrors").is_dir())
    evictor, ends = Mirrors(home), threading.Event()
    evicted = 0

    def evict() -> None:
        nonlocal evicted
        while not ends.wait(0.01):
            evicted += sum(item.remove() for item in evictor.items())

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        edit = {
            "tool": "apply_patch",
            "args": {"edits": [{"path": "a.txt", "version": "@a.txt", "old": "two\n", "new": "2\n"}]},
        }
        refs = yard.submit(*[[LIST, edit, LIST, {"tool": "show_diff", "args": {}}, {"final": "done"}]] * 6)
        yard.wait_for_end(*refs, seconds=120)
    finally:
        ends.set()
        thread.join()
    assert evicted >= 2
    assert not [line for line in worker.lines() if line["event"] in ("step_broke", "work_broke")]
    for ref in refs:
        acts = [step for step in yard.steps(ref) if step.kind == "act"]
        assert [(step.state, step.attempt) for step in acts] == [("done", 1)] * 4
        assert acts[3].result is not None
        assert "-two" in str(acts[3].result["data"])
        yard.in_order(ref)


def test_a_worker_evicts_what_is_over_its_quota(yard: Yard, tmp_path: Path) -> None:
    home = tmp_path / "home"
    Mirrors(home)
    (home / "mirrors" / ("a" * 32)).mkdir()
    (home / "mirrors" / ("a" * 32) / "x").write_bytes(bytes(2_000_000))
    worker = _worker(yard, home, PATCHYARD_MIRRORS_MAX_GB="0.001")
    until(lambda: worker.says("evicted"))
    [told] = [line for line in worker.lines() if line["event"] == "evicted"]
    assert (told["kind"], told["name"], told["bytes"] >= 2_000_000) == ("mirror", "a" * 32, True)
    assert not (home / "mirrors" / ("a" * 32)).exists()
