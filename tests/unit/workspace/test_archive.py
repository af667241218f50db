from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.workspace.archive import tree_of_archive
from runners.workspace.errors import RefusedWorkspace
from runners.workspace.store import EXECUTABLE, FILE, SYMLINK, Change, Store
from runners.workspace.tarball import TreeLimits
from tests.unit.workspace.test_stream import info, make_tar
from tests.unit.workspace.trees import read

FILES = {"setup.py": Change(FILE, b"x"), "bin/run": Change(EXECUTABLE, b"#!"), "bin/l": Change(SYMLINK, b"run")}


def sample_tar(top: str = "thing-1.0/") -> bytes:
    return make_tar(
        info(top.rstrip("/") or ".", tarfile.DIRTYPE),
        (info(f"{top}setup.py"), b"x"),
        (info(f"{top}bin/run", mode=0o755), b"#!"),
        info(f"{top}bin/l", tarfile.SYMTYPE, "run"),
        (info(f"{top}.git/config"), b"[core]"),
    )


def zipped(*entries: tuple[str, bytes, int]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in entries:
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, mode << 16
            archive.writestr(entry, data)
    return out.getvalue()


def sample_zip(top: str = "thing-1.0/") -> bytes:
    return zipped(
        (top, b"", stat.S_IFDIR | 0o755) if top else ("bin/", b"", stat.S_IFDIR | 0o755),
        (f"{top}setup.py", b"x", stat.S_IFREG | 0o644),
        (f"{top}bin/run", b"#!", stat.S_IFREG | 0o755),
        (f"{top}bin/l", b"run", stat.S_IFLNK | 0o777),
        (f"{top}.git/config", b"[core]", stat.S_IFREG | 0o644),
    )


def tree_of(store: Store, data: bytes, limits: TreeLimits | None = None) -> str:
    path = store.path.parent / f"archive-{os.urandom(4).hex()}"
    path.write_bytes(data)
    return tree_of_archive(store, path, limits or TreeLimits())


def refused(store: Store, data: bytes, limits: TreeLimits | None = None) -> tuple[str, str]:
    with pytest.raises(RefusedWorkspace) as error:
        tree_of(store, data, limits)
    return error.value.code, error.value.path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("top", ["thing-1.0/", "./thing-1.0/", ""])
def test_a_tar_becomes_a_tree_without_its_top_folder(store: Store, pack: Callable[[bytes], bytes], top: str) -> None:
    assert read(store, tree_of(store, pack(sample_tar(top)))) == FILES


def test_a_zip_becomes_the_same_tree(store: Store) -> None:
    assert tree_of(store, sample_zip()) == tree_of(store, sample_tar())
    assert read(store, tree_of(store, sample_zip(""))) == FILES


def test_the_header_that_git_archive_writes_is_no_file(store: Store, tmp_path: Path) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "1" * 40}) as archive:
        archive.addfile(info("top/a"))
    assert set(read(store, tree_of(store, tar.getvalue()))) == {"a"}


def test_two_folders_at_the_top_stay(store: Store) -> None:
    assert set(read(store, tree_of(store, make_tar((info("a/x"), b""), (info("b/x"), b""))))) == {"a/x", "b/x"}


def test_the_later_of_two_counts_as_when_unpacked(store: Store) -> None:
    tar = make_tar((info("t/a"), b"1"), info("t/l", tarfile.SYMTYPE, "a"), (info("t/a"), b"2"), (info("t/l"), b"3"))
    assert read(store, tree_of(store, tar)) == {"a": Change(FILE, b"2"), "l": Change(FILE, b"3")}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (make_tar((info("t/../../x"), b"")), "escaping_path"),
        (make_tar((info("/etc/x"), b"")), "absolute_path"),
        (make_tar((info("t/a"), b""), info("t/l", tarfile.SYMTYPE, "../x")), "link_out"),
        (make_tar((info("t/a"), b""), info("t/l", tarfile.LNKTYPE, "/etc/passwd")), "hard_link_out"),
        (make_tar(info("t/d", tarfile.CHRTYPE)), "device"),
        (make_tar(info("t", tarfile.DIRTYPE)), "empty"),
        (make_tar((info("t/a"), b"x"))[:700], "truncated"),
        (gzip.compress(sample_tar())[:-20], "malformed"),
        (gzip.compress(sample_tar())[:60] + b"garbage", "malformed"),
        (b"PK\x03\x04 no zip", "malformed"),
        (b"BZh9 nothing", "malformed"),
        (b"\xfd7zXZ\0 nothing", "malformed"),
        (b"text", "truncated"),
        (zipped(("../x", b"", 0o644)), "escaping_path"),
        (zipped(("/x", b"", 0o644)), "absolute_path"),
        (zipped(("l", b"../../etc", stat.S_IFLNK | 0o777)), "link_out"),
        (zipped(("p", b"", stat.S_IFIFO | 0o644)), "fifo"),
    ],
)
def test_a_hostile_archive_is_refused(store: Store, data: bytes, code: str) -> None:
    assert refused(store, data)[0] == code


def test_bombs_end_at_the_limits(store: Store) -> None:
    limits = TreeLimits(max_files=10, max_bytes=1_000_000, max_file_bytes=1_000_000)
    bomb = make_tar((info("zeros"), bytes(30_000_000)))
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        assert refused(store, pack(bomb), limits) == ("too_many_bytes", "zeros")
    assert refused(store, zipped(("zeros", bytes(30_000_000), 0o644)), limits) == ("too_many_bytes", "zeros")
    many = zipped(*((f"{n}", b"", 0o644) for n in range(11)))
    assert refused(store, many, limits)[0] == "too_many_files"


def test_a_zip_that_lies_about_its_sizes_is_refused(store: Store) -> None:
    honest = bytearray(zipped(("a", bytes(100_000), 0o644)))
    central = honest.index(b"PK\x01\x02")
    honest[central + 24 : central + 28] = (10).to_bytes(4, "little")
    assert refused(store, bytes(honest))[0] == "malformed"


def test_an_encrypted_zip_is_told(store: Store) -> None:
    data = bytearray(zipped(("a", b"x", 0o644)))
    data[6] |= 1
    central = data.index(b"PK\x01\x02")
    data[central + 8] |= 1
    assert refused(store, bytes(data)) == ("encrypted", "a")


def test_an_xz_archive_cannot_ask_for_much_memory(store: Store) -> None:
    data = bytearray(lzma.compress(sample_tar(), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    # The first block's header starts at byte 12: its length, flags, the filter's id and one byte for the dictionary's
    # size, 40 of which means 4 GiB, then a checksum.
    assert data[14:16] == b"\x21\x01"
    data[16] = 40
    end = 12 + (data[12] + 1) * 4
    data[end - 4 : end] = zlib.crc32(data[12 : end - 4]).to_bytes(4, "little")
    assert read(store, tree_of(store, lzma.compress(sample_tar()))) == FILES
    assert lzma.decompress(bytes(data)) == sample_tar()
    assert refused(store, bytes(data))[0] == "malformed"
