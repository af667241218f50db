from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from runners.workspace.errors import RefusedWorkspace
from runners.workspace.store import EMPTY_TREE, EXECUTABLE, FILE, SUBMODULE, SYMLINK, Change, Store
from runners.workspace.stream import TarCache, TreeLimits, tar_chunks, tar_of_tree, tree_of_tar
from tests.unit.workspace.trees import Files, file_sets, git, read, write

TEXT = Change(FILE, b"text\n")


def make_tar(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


def refused(store: Store, tar: bytes, base: str = EMPTY_TREE, limits: TreeLimits | None = None) -> tuple[str, str]:
    with pytest.raises(RefusedWorkspace) as error:
        tree_of_tar(store, base, tar, limits or TreeLimits())
    return error.value.code, error.value.path


# -- there and back ----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(files=file_sets())
def test_a_tree_survives_the_way_through_a_tar(shared_store: Store, files: Files) -> None:
    tree = write(shared_store, files)
    tar = tar_of_tree(shared_store, tree, TarCache())
    assert tree_of_tar(shared_store, tree, tar) == tree


@settings(max_examples=25, deadline=None)
@given(files=file_sets())
def test_a_tree_survives_real_tar_and_a_real_folder(
    tmp_path_factory: pytest.TempPathFactory, shared_store: Store, files: Files
) -> None:
    folder = tmp_path_factory.mktemp("work")
    tree = write(shared_store, files)
    tar = tar_of_tree(shared_store, tree, TarCache())
    subprocess.run(["tar", "-x", "--no-same-owner", "-C", folder], input=tar, check=True, capture_output=True)
    packed = subprocess.run(["tar", "-c", "-C", folder, "."], check=True, capture_output=True).stdout
    assert tree_of_tar(shared_store, tree, packed) == tree


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_common_tar_format_is_read(store: Store, format: int) -> None:
    deep = "/".join(["folder"] * 20) + "/file"
    link = info("link", tarfile.SYMTYPE, "x/" * 40 + "y")
    tar = make_tar(
        info("./", tarfile.DIRTYPE),
        (info("./" + deep, mode=0o755), b"deep"),
        (info("plain"), b"\0"),
        link,
        format=format,
    )
    files = read(store, tree_of_tar(store, EMPTY_TREE, tar))
    assert files == {
        deep: Change(EXECUTABLE, b"deep"),
        "plain": Change(FILE, b"\0"),
        "link": Change(SYMLINK, b"x/" * 40 + b"y"),
    }


def test_the_tar_is_the_same_everywhere_and_belongs_to_the_sandbox(store: Store, tmp_path: Path) -> None:
    files = {"a/run": Change(EXECUTABLE, b"x"), "b": TEXT, "l": Change(SYMLINK, b"b")}
    other = Store.create(tmp_path / "other.git")
    tar = tar_of_tree(store, write(store, files), TarCache())
    assert tar == tar_of_tree(other, write(other, files), TarCache())
    with tarfile.open(fileobj=io.BytesIO(tar)) as read_back:
        members = {m.name: m for m in read_back}
    assert {(m.uid, m.gid, m.mtime) for m in members.values()} == {(65532, 65532, 946684800)}
    assert (members["a"].mode, members["a/run"].mode, members["b"].mode) == (0o755, 0o755, 0o644)


def test_a_submodule_is_an_empty_folder_and_stays_a_submodule(store: Store) -> None:
    tree = store.with_entries(write(store, {"a": TEXT}), {"libs/sub": (SUBMODULE, "1" * 40)})
    tar = tar_of_tree(store, tree, TarCache())
    with tarfile.open(fileobj=io.BytesIO(tar)) as read_back:
        assert read_back.getmember("libs/sub").isdir()
    assert tree_of_tar(store, tree, tar) == tree
    assert refused(store, make_tar((info("libs/sub/x"), b"")), tree) == ("inside_submodule", "libs/sub/x")
    assert tree_of_tar(store, tree, make_tar((info("a"), TEXT.data))) == write(store, {"a": TEXT})


def test_what_is_not_in_the_tar_is_deleted_and_the_rest_is_taken(store: Store) -> None:
    base = write(store, {"a": TEXT, "b": TEXT})
    tree = tree_of_tar(store, base, make_tar((info("b", mode=0o755), b"new"), (info("c"), b"")))
    assert read(store, tree) == {"b": Change(EXECUTABLE, b"new"), "c": Change(FILE, b"")}


def test_a_tar_is_read_from_a_pipe(store: Store) -> None:
    tree = write(store, {"big": Change(FILE, os.urandom(300_000))})
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as source:
        if (child := os.fork()) == 0:
            os.write(writing, tar_of_tree(store, tree, TarCache())[:40_000])
            os._exit(0)
        os.close(writing)
        with pytest.raises(RefusedWorkspace) as error:
            tree_of_tar(store, tree, source)
        os.waitpid(child, 0)
    assert error.value.code == "truncated"


# -- what an enemy packs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (info("pipe", tarfile.FIFOTYPE), "fifo"),
        (info("disk", tarfile.BLKTYPE), "device"),
        (info("tty", tarfile.CHRTYPE), "device"),
        (info("odd", b"V"), "unknown_type"),
        (info("sparse", tarfile.GNUTYPE_SPARSE), "unknown_type"),
        (info("/etc/passwd"), "absolute_path"),
        (info("a/../../b"), "escaping_path"),
        (info(".git/config"), "git_folder"),
        (info("sub/.GIT", tarfile.DIRTYPE), "git_folder"),
        (info("git~1/x"), "git_folder"),
        (info("a//b"), "bad_path"),
        (info("hard", tarfile.LNKTYPE, "/etc/shadow"), "hard_link_out"),
        (info("hard", tarfile.LNKTYPE, "../outside"), "hard_link_out"),
        (info("hard", tarfile.LNKTYPE, "not-there"), "hard_link_out"),
        (info("link", tarfile.SYMTYPE, "/etc/passwd"), "link_out"),
        (info("link", tarfile.SYMTYPE, ".."), "link_out"),
        (info("d/link", tarfile.SYMTYPE, "../../x"), "link_out"),
        (info("d/link", tarfile.SYMTYPE, "x/../../../y"), "link_out"),
        (info("link", tarfile.SYMTYPE, ""), "bad_link"),
        (info(".gitmodules", tarfile.SYMTYPE, "x"), "git_folder"),
    ],
)
def test_a_member_that_cannot_be_part_of_a_workspace_is_refused(
    store: Store, member: tarfile.TarInfo, code: str
) -> None:
    assert refused(store, make_tar((info("good"), b"x"), member)) == (code, member.name)


def test_a_link_that_only_leads_out_through_another_link_is_refused(store: Store) -> None:
    tar = make_tar(
        info("p/q/d", tarfile.SYMTYPE, "../../top"), info("p/q/x", tarfile.SYMTYPE, "d/../../y"), (info("top/f"), b"")
    )
    assert refused(store, tar) == ("link_out", "p/q/x")


def test_links_that_stay_inside_are_kept(store: Store) -> None:
    links = {"a/up": b"../b/f", "a/self": b"./self2", "a/self2": b"self", "dots": b"a/../b", "b/f": b"../a/up"}
    tar = make_tar(*(info(path, tarfile.SYMTYPE, target.decode()) for path, target in links.items()))
    assert read(store, tree_of_tar(store, EMPTY_TREE, tar)) == {p: Change(SYMLINK, t) for p, t in links.items()}


def test_a_link_out_that_the_base_has_already_may_stay_as_it_is(store: Store) -> None:
    base = write(store, {"abs": Change(SYMLINK, b"/usr/bin/env"), "a": TEXT})
    assert tree_of_tar(store, base, tar_of_tree(store, base, TarCache())) == base
    assert refused(store, make_tar(info("abs", tarfile.SYMTYPE, "/etc/passwd")), base) == ("link_out", "abs")


def test_a_link_that_starts_to_lead_out_because_another_changed_is_refused(store: Store) -> None:
    base = write(store, {"x/y/l": Change(SYMLINK, b"d/../../f"), "x/y/d/f": TEXT})
    assert tree_of_tar(store, base, tar_of_tree(store, base, TarCache())) == base
    tar = make_tar(info("x/y/l", tarfile.SYMTYPE, "d/../../f"), info("x/y/d", tarfile.SYMTYPE, "../.."))
    assert refused(store, tar, base) == ("link_out", "x/y/l")


def test_a_tangle_of_links_ends_soon(store: Store) -> None:
    members = [info(f"l{n}", tarfile.SYMTYPE, "/".join([f"l{n + 1}"] * 60)) for n in range(500)]
    started = time.monotonic()
    assert refused(store, make_tar(*members))[0] == "link_out"
    assert time.monotonic() - started < 30


def test_a_hard_link_within_becomes_a_copy(store: Store) -> None:
    tar = make_tar(
        (info("a", mode=0o755), b"x"),
        info("b", tarfile.LNKTYPE, "./a"),
        info("l", tarfile.SYMTYPE, "a"),
        info("m", tarfile.LNKTYPE, "l"),
    )
    files = read(store, tree_of_tar(store, EMPTY_TREE, tar))
    assert files["b"] == files["a"] == Change(EXECUTABLE, b"x")
    assert files["m"] == Change(SYMLINK, b"a")


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ([(info("a"), b"1"), (info("./a"), b"2")], "duplicate_name"),
        ([info("a", tarfile.DIRTYPE), info("a/", tarfile.DIRTYPE)], "duplicate_name"),
        ([info("a", tarfile.DIRTYPE), (info("a"), b"2")], "duplicate_name"),
        ([(info("a"), b"1"), (info("a/b"), b"2")], "name_conflict"),
        ([info("a", tarfile.SYMTYPE, "b"), (info("a/c"), b"2")], "name_conflict"),
        ([(info("a/b/c"), b"1"), info("a/b", tarfile.SYMTYPE, "x")], "name_conflict"),
        ([(info("a"), b"1"), info("a/b", tarfile.DIRTYPE)], "name_conflict"),
    ],
)
def test_one_name_stands_for_one_thing(store: Store, members: list[tarfile.TarInfo], code: str) -> None:
    assert refused(store, make_tar(*members))[0] == code


def test_limits_hold_before_the_bytes_are_read(store: Store) -> None:
    limits = TreeLimits(max_files=3, max_bytes=1_000, max_file_bytes=600)
    assert refused(store, make_tar(*((info(f"{n}"), b"") for n in range(4))), limits=limits) == ("too_many_files", "3")
    assert refused(store, make_tar((info("big"), bytes(601))), limits=limits) == ("too_many_bytes", "big")
    assert refused(store, make_tar((info("a"), bytes(600)), (info("b"), bytes(600))), limits=limits) == (
        "too_many_bytes",
        "b",
    )
    claims = bytearray(make_tar((info("huge"), b"")))
    claims[:512] = _with_size(claims[:512], b"77777777777\0")
    assert refused(store, bytes(claims)) == ("too_many_bytes", "huge")


def _with_size(block: bytes, size: bytes) -> bytes:
    block = block[:124] + size + block[136:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def test_broken_and_cut_tars_are_refused(store: Store) -> None:
    tree = write(store, {"a": TEXT, "d/b": Change(FILE, bytes(2_000))})
    tar = tar_of_tree(store, tree, TarCache())
    for end in (0, 100, 512, 1_000, len(tar) - 1024):
        assert refused(store, tar[:end])[0] == "truncated"
    assert refused(store, b"not a tar, but long enough to be looked at".ljust(2_048, b"."))[0] == "malformed"
    assert refused(store, _with_size(tar[:512], b"-0000000001\0") + tar[512:])[0] == "malformed"


@pytest.mark.parametrize(
    "records",
    [{"GNU.sparse.major": "1"}, {"GNU.sparse.realsize": "99999999999"}, {"size": "-1"}, {"size": "1e9"}],
)
def test_pax_records_that_would_change_sizes_are_refused(store: Store, records: dict[str, str]) -> None:
    member = info("a")
    member.pax_headers = records
    assert refused(store, make_tar((member, b"x"), format=tarfile.PAX_FORMAT))[0] in ("malformed", "unknown_type")


def test_endless_headers_about_headers_are_refused(store: Store) -> None:
    lead = tarfile.TarInfo("././@LongLink")
    lead.type = tarfile.GNUTYPE_LONGNAME
    assert refused(store, make_tar(*[(lead, b"x\0")] * 40), limits=TreeLimits(max_files=2)) == ("too_many_files", "")
    assert refused(store, make_tar((lead, bytes(70_000))))[0] == "malformed"


# -- by-products -------------------------------------------------------------------------------------------------------


def test_caches_and_ignored_files_are_no_part_of_the_next_tree(store: Store) -> None:
    ignore = Change(FILE, b"# by-products\n/build/\n*.log\n!keep.log\n.venv\n")
    base = write(store, {".gitignore": ignore, "src/a.py": TEXT, "build/tracked": TEXT, "old.log": TEXT})
    names = [
        ".gitignore", "src/a.py", "src/new.py", "src/__pycache__/a.cpython-311.pyc", "src/b.pyc", ".pytest_cache/v/x",
        "build/tracked", "build/deep/out", "src/build/in", "old.log", "new.log", "keep.log", "x/.venv/lib/y.py",
    ]  # fmt: skip
    tree = tree_of_tar(store, base, make_tar(*((info(name), b"new") for name in names)))
    kept = {".gitignore", "src/a.py", "src/new.py", "build/tracked", "src/build/in", "old.log", "keep.log"}
    assert set(read(store, tree)) == kept
    assert all(change.data == b"new" for change in read(store, tree).values())


def test_a_cache_file_that_the_base_tracks_stays(store: Store) -> None:
    base = write(store, {"tests/data/__pycache__/odd.pyc": TEXT})
    assert tree_of_tar(store, base, tar_of_tree(store, base, TarCache())) == base


def test_a_new_gitignore_hides_nothing(store: Store) -> None:
    base = write(store, {"a": TEXT})
    tree = tree_of_tar(store, base, make_tar((info(".gitignore"), b"*\n"), (info("evil.py"), b"")))
    assert set(read(store, tree)) == {".gitignore", "evil.py"}


def test_what_is_refused_is_refused_in_ignored_places_too(store: Store) -> None:
    base = write(store, {".gitignore": Change(FILE, b"build/\n")})
    assert refused(store, make_tar(info("build/pipe", tarfile.FIFOTYPE)), base) == ("fifo", "build/pipe")
    assert refused(store, make_tar((info("build/.git/HEAD"), b"")), base) == ("git_folder", "build/.git/HEAD")


def test_a_hostile_gitignore_costs_little(store: Store) -> None:
    lines = [
        b"*a*a*a*a*a*a*a*a*b",
        b"[",
        b"!",
        b"**/a/**/b/**/c/**/d",
        b"x" * 5_000,
        *(b"*a*%d" % n for n in range(900)),
    ]
    base = write(store, {".gitignore": Change(FILE, b"\n".join(lines))})
    started = time.process_time()
    tree = tree_of_tar(store, base, make_tar(*((info("a" * 90 + f"/{n}" + "a" * 150), b"") for n in range(100))))
    assert len(read(store, tree)) == 100
    assert time.process_time() - started < 10


# -- speed -------------------------------------------------------------------------------------------------------------


def test_streaming_is_no_slower_than_git_archive_and_free_when_repeated(store: Store) -> None:
    files = {f"pkg{n % 50}/module{n}.py": Change(FILE, os.urandom(2_500) + b"some text\n" * 750) for n in range(2_000)}
    tree = write(store, files)
    git(store.path, "update-ref", "refs/heads/x", git(store.path, "commit-tree", "-m", "x", tree).decode().strip())
    git(store.path, "repack", "-adq")
    archive, cold, warm, cache = [], [], [], TarCache()
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(["git", "archive", "--format=tar", tree], cwd=store.path, check=True, stdout=subprocess.PIPE)
        archive.append(time.perf_counter() - started)
        cache = TarCache()
        started = time.perf_counter()
        size = sum(map(len, tar_chunks(store, tree, cache)))
        cold.append(time.perf_counter() - started)
        started = time.perf_counter()
        assert sum(map(len, tar_chunks(store, tree, cache))) == size
        warm.append(time.perf_counter() - started)
    assert size > 20_000_000
    assert min(cold) < 1.5 * min(archive), (archive, cold)
    assert min(warm) < 0.01, warm


def test_the_cache_is_bounded_and_serves_the_next_tree(store: Store) -> None:
    tree = write(store, {f"d{n}/f": Change(FILE, os.urandom(10_000)) for n in range(40)})
    cache = TarCache(max_bytes=100_000)
    first = tar_of_tree(store, tree, cache)
    assert 0 < cache.held_bytes <= 100_000
    assert tar_of_tree(store, tree, cache) == first
    edited = store.with_changes(tree, {"d0/f": TEXT})
    assert tar_of_tree(store, edited, cache) == tar_of_tree(store, edited, TarCache())
