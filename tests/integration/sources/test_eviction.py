"""Mirrors may go when room is needed, never while somebody uses them, and are fetched again when they are needed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ledger.errors import DiskFull, NoRoom
from ledger.records.source import SourceRef
from runners.disk import Floor
from runners.eviction import Item, evict, size_bytes
from runners.workspace.mirrors import SourceLimits, place_of
from runners.workspace.source import Mirrors, parse_source
from runners.workspace.store import Store
from tests.fixtures.disk import small_disk
from tests.integration.sources.conftest import commit_of, no_object
from tests.unit.workspace.trees import git, read


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another repository."""
    folder = tmp_path / "other"
    git(tmp_path, "init", "-q", "-b", "main", "other")
    (folder / "b.py").write_text("b\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def _items(mirrors: Mirrors) -> dict[str, Item]:
    return {item.name: item for item in mirrors.items()}


def _names(home: Path) -> set[str]:
    return {path.name for path in (home / "mirrors").iterdir()}


def test_the_least_recently_used_goes_first_and_is_fetched_again(mirrors: Mirrors, work: Path, other: Path) -> None:
    first, second = parse_source(str(work), work), parse_source(str(other), other)
    commits = {source.location: mirrors.resolve(source).base.commit for source in (first, second)}
    for source, when in ((first, 2_000), (second, 1_000)):
        with mirrors.in_use(source):
            pass
        os.utime(mirrors._home / "mirrors" / f"{place_of(source)}.use", (when, when))
    items = _items(mirrors)
    assert items[place_of(first)].used_at == 2_000
    assert items[place_of(first)].size_bytes > 0
    done = evict(items.values(), max_bytes=items[place_of(first)].size_bytes)
    assert [item.name for item in done.removed] == [place_of(second)]
    assert done.enough
    assert _items(mirrors).keys() == {place_of(first)}
    again = mirrors.open(second, commits[second.location], no_object)
    assert "b.py" in read(again, again.tree_of_commit(commits[second.location]))


def test_a_mirror_in_use_stays_also_from_another_process(mirrors: Mirrors, home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    commit = mirrors.resolve(source).base.commit
    code = (
        "import sys; from pathlib import Path; from runners.workspace.source import Mirrors;"
        "print([item.remove() for item in Mirrors(Path(sys.argv[1])).items()])"
    )
    with mirrors.in_use(source), mirrors.in_use(source):
        said = subprocess.run([sys.executable, "-c", code, home], capture_output=True, text=True, check=True).stdout
        assert said == "[False]\n"
        done = evict(mirrors.items(), max_bytes=0)
        assert (done.removed, done.enough) == ((), False)
        assert mirrors.open(source, commit, no_object).has(commit)
    said = subprocess.run([sys.executable, "-c", code, home], capture_output=True, text=True, check=True).stdout
    assert said == "[True]\n"
    assert _names(home) == {"git.config"}


def test_a_mirror_that_was_built_anew_with_less_in_it_is_noticed(mirrors: Mirrors, home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    first, second = commit_of(work, "v1"), commit_of(work)
    for commit in (first, second):
        mirrors.open(source, commit, no_object)
    other = Mirrors(home)
    assert [item.remove() for item in other.items()] == [True]
    other.open(source, second, no_object)
    store = Store(mirrors.open(source, first, no_object).path)  # as another thread sees it
    assert "a.py" in read(store, store.tree_of_commit(first))


def test_mirrors_are_evicted_while_they_are_used_and_nobody_is_the_worse(home: Path, work: Path) -> None:
    source, ends = parse_source(str(work), work), threading.Event()
    commit = commit_of(work)
    wrong: list[BaseException] = []
    opened = 0

    def use() -> None:
        nonlocal opened
        mirrors = Mirrors(home)
        while not ends.wait(0.02):
            try:
                with mirrors.in_use(source):
                    store = mirrors.open(source, commit, no_object)
                    files = read(store, store.tree_of_commit(commit))
                    assert files["a.py"].data == b"two\n"
                    store.add_blob(os.urandom(10))
                    opened += 1
            except BaseException as error:
                wrong.append(error)
                raise

    users = [threading.Thread(target=use) for _ in range(2)]
    for user in users:
        user.start()
    evictor, evicted = Mirrors(home), 0
    until = time.monotonic() + 60
    while evicted < 5 and time.monotonic() < until and not wrong:
        evicted += len(evict(evictor.items(), max_bytes=0).removed)
        time.sleep(0.001)
    ends.set()
    for user in users:
        user.join()
    assert wrong == []
    assert evicted >= 5
    assert opened > evicted


def test_what_a_killed_evictor_or_builder_left_is_taken_away(mirrors: Mirrors, home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    mirrors.open(source, commit_of(work), no_object)
    folder = home / "mirrors"
    (folder / place_of(source)).rename(folder / ".old-1-x")  # renamed, and then it was killed
    for name in (".new-1-x", ".new-1-y"):
        (folder / name / "objects").mkdir(parents=True)
    os.utime(folder / ".new-1-x", (0, 0))
    assert list(mirrors.items()) == []
    assert _names(home) == {"git.config", f"{place_of(source)}.lock", ".new-1-y"}
    assert mirrors.open(source, commit_of(work), no_object).has(commit_of(work))


def test_an_archives_download_goes_with_the_room_it_takes(mirrors: Mirrors, home: Path, tmp_path: Path) -> None:
    (home / "downloads").mkdir()
    (home / "downloads" / ("a" * 64)).write_bytes(b"x" * 10_000)
    left = home / "downloads" / f".{'b' * 64}.1.x"
    left.touch()
    os.utime(left, (0, 0))
    [item] = mirrors.items()
    assert (item.kind, item.size_bytes >= 10_000) == ("download", True)
    with mirrors.in_use(SourceRef(kind="archive", location="https://x.example/a.tgz", sha256="a" * 64)):
        assert not item.remove()
    assert item.remove()
    assert list((home / "downloads").iterdir()) == []


def test_no_mirror_is_begun_on_a_disk_with_too_little_room(home: Path, work: Path) -> None:
    source = parse_source(str(work), work)
    for floor in (Floor(1 << 62, 0), Floor(0, 1 << 62)):
        mirrors = Mirrors(home, limits=SourceLimits(floor=floor))
        with pytest.raises(NoRoom, match=r"^EDISK: .*needed; make room"):
            mirrors.resolve(source)
        with pytest.raises(NoRoom):
            mirrors.open(source, commit_of(work), no_object)
    assert _names(home) == {"git.config"}
    Mirrors(home).open(source, commit_of(work), no_object)
    assert mirrors.open(source, commit_of(work), no_object).has(commit_of(work)), "what is there needs no room"


def test_a_disk_that_fills_up_in_the_middle_is_told_and_nothing_half_written_is_believed(
    tmp_path: Path, work: Path
) -> None:
    (work / "big").write_bytes(os.urandom(3_000_000))
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "big")
    source, commit = parse_source(str(work), work), commit_of(work)
    with small_disk(tmp_path / "disk", megabytes=2) as disk:
        mirrors = Mirrors(disk / "home")
        with pytest.raises(DiskFull, match="No space left on device"):
            mirrors.open(source, commit, no_object)
        assert size_bytes(disk) < 200_000, "what there was of it is gone"
        small = commit_of(work, "v1")
        assert mirrors.open(source, small, no_object).has(small)
        with pytest.raises(DiskFull):
            mirrors.open(source, commit, no_object)
        store = mirrors.open(source, small, no_object)
        assert read(store, store.tree_of_commit(small))["a.py"].data == b"one\n"
