"""Images of several layers: what is seen in the end is what an engine makes of them, and no layer leads out."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from docker import APIClient

from images.oci_layout import Layout, engine_archive
from runners.sandbox.backend import ImageUnavailable
from runners.sandbox.oci.images import Images
from runners.sandbox.oci.unpack import Unpacking
from tests.fixtures.layouts import Member, entry, folder, manifest_of, small_layout

SYM, LNK = tarfile.SYMTYPE, tarfile.LNKTYPE
Make = Callable[..., Layout]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    made = 0

    def one(*layers: tuple[Member, ...], packed: bool = False) -> Layout:
        nonlocal made
        made += 1
        return small_layout(tmp_path / f"layout-{made}", *layers, packed=packed)

    return one


@pytest.fixture
def shelf(tmp_path: Path) -> Images:
    (tmp_path / "images").mkdir()
    return Images(tmp_path / "images")


LOWER = (
    folder("etc"), entry("etc/a", b"lower a"), entry("etc/gone", b"x"), entry("etc/first", b"linked"),
    entry("etc/second", kind=LNK, link="etc/first"), entry("etc/third", kind=LNK, link="etc/first"),
    folder("data", 0o700), folder("data/old"), entry("data/old/x", b"x"), entry("data/y", b"y"),
    folder("lib"), entry("lib/so", b"so"), folder("var", 0o751), folder("var/log", 0o750), entry("var/log/l", b"l"),
    entry("file", b"a file"), folder("made"), entry("made/of", b"x"),
)  # fmt: skip
MIDDLE = (
    entry("etc/.wh.gone"), entry("etc/first", b"upper"), folder("data", 0o711), entry("data/.wh..wh..opq"),
    entry("data/new", b"new"), entry("var/log/deep", b"d"), entry("lib", kind=SYM, link="usr/lib"),
    folder("usr"), folder("usr/lib"), entry("usr/lib/so", b"other"), entry(".wh.made"),
)  # fmt: skip
UPPER = (
    folder("etc", 0o755), entry("etc/gone", b"again"), folder("file"), entry("file/now", b"a folder"),
    entry("usr/lib/late", b"late"), entry("data/.wh.new"), entry("made", b"a file"),
)  # fmt: skip


def _seen(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Kind, mode and content of each name, but for what every root has for the runtime."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if name.split("/")[0] in ("proc", "dev", "sys", "tmp", "workspace") or name == "etc/hosts":
            continue
        kind = "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file"
        data = os.fsencode(os.readlink(path)) if kind == "link" else path.read_bytes() if kind == "file" else b""
        found[name] = (kind, 0 if kind == "link" else stat.S_IMODE(mode), data)
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_upper_layers_hide_replace_and_add(shelf: Images, make: Make, packed: bool) -> None:
    image = shelf.load(make(LOWER, MIDDLE, UPPER, packed=packed).folder)
    assert _seen(shelf.root(image)) == {
        "data": ("folder", 0o711, b""),
        "etc": ("folder", 0o755, b""),
        "etc/a": ("file", 0o644, b"lower a"),
        "etc/first": ("file", 0o644, b"upper"),
        "etc/gone": ("file", 0o644, b"again"),
        "etc/second": ("file", 0o644, b"linked"),
        "etc/third": ("file", 0o644, b"linked"),
        "file": ("folder", 0o755, b""),
        "file/now": ("file", 0o644, b"a folder"),
        "lib": ("link", 0, b"usr/lib"),
        "made": ("file", 0o644, b"a file"),
        "usr": ("folder", 0o755, b""),
        "usr/lib": ("folder", 0o755, b""),
        "usr/lib/late": ("file", 0o644, b"late"),
        "usr/lib/so": ("file", 0o644, b"other"),
        "var": ("folder", 0o751, b""),
        "var/log": ("folder", 0o750, b""),
        "var/log/deep": ("file", 0o644, b"d"),
        "var/log/l": ("file", 0o644, b"l"),
    }
    assert len(image.layers) == 3


@pytest.mark.engine
def test_an_engine_sees_the_same(shelf: Images, make: Make, engine_host: str, tmp_path: Path) -> None:
    layout = make(LOWER, MIDDLE, UPPER, packed=True)
    client = APIClient(base_url=engine_host)
    for line in client.load_image(engine_archive(layout)):
        assert "error" not in line
    container = client.create_container(layout.reference, ["none"])["Id"]
    try:
        archive = io.BytesIO(b"".join(client.export(container)))
    finally:
        client.remove_container(container)
        client.remove_image(layout.reference)
        client.close()
    root = tmp_path / "exported"
    with tarfile.open(fileobj=archive) as tar:
        tar.extractall(root, filter="fully_trusted")  # noqa: S202 - of our own engine
    theirs, ours = _seen(root), _seen(shelf.root(shelf.load(layout.folder)))
    for name in (
        "data",
        "var",
        "var/log",
    ):  # an upper layer has files in them and no modes: engines differ
        theirs[name] = ours[name]
    assert {name: one for name, one in theirs.items() if name in ours} == ours
    # What an engine puts into every container.
    assert theirs.keys() - ours.keys() <= {"etc/hostname", "etc/resolv.conf", "etc/mtab", ".dockerenv"}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (((folder("a"),), (entry("l", kind=SYM, link="/etc"), entry("l/x", b"x"))), "leads through a link"),
        (((entry("l", kind=SYM, link="/etc"),), (entry("l/x", b"x"),)), "no folder in a lower layer"),
        (((entry("l", b"file"),), (entry("l/x", b"x"),)), "no folder in a lower layer"),
        (((folder("a"),), (entry("../x", b"x"),)), "leads out of it"),
        (((folder("a"),), (entry("x", kind=LNK, link="../../etc/passwd"),)), "no file in its layer"),
        (((entry("a", b"a"),), (entry("x", kind=LNK, link="a"),)), "no file in its layer"),
        (((folder("a"), entry("a/.wh..wh..opq")),), "takes a file away"),
        (((entry(".wh.a"),),), "takes a file away"),
        (((entry("a", b"1"), entry("a", b"2")),), "twice in one layer"),
        (((entry("proc", kind=SYM, link="/etc"),), (folder("b"),)), "no folder"),
    ],
)
def test_layers_that_lead_out_or_make_no_sense_are_refused(
    shelf: Images, make: Make, tmp_path: Path, layers: tuple[tuple[Member, ...], ...], message: str
) -> None:
    with pytest.raises(ImageUnavailable, match=message):
        shelf.load(make(*layers).folder)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["lock"]


def test_a_lower_layers_link_cannot_redirect_an_upper_layers_file(shelf: Images, make: Make, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    evil = (entry("a", kind=SYM, link=str(tmp_path / "outside")), entry("b", kind=SYM, link="../../../outside"))
    upper = (folder("a"), entry("a/x", b"x"), folder("b"), entry("b/x", b"x"))
    image = shelf.load(make(evil, upper).folder)
    assert (shelf.root(image) / "a/x").read_bytes() == b"x"
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("which", ["packed", "diff_id", "kind", "not gzip"])
def test_a_layer_that_is_not_what_it_is_said_to_be_is_not_kept(
    shelf: Images, tmp_path: Path, which: str, make: Make
) -> None:
    layout = make((entry("a", b"one"),), (entry("b", b"two"),), packed=True)
    layer = layout.layers[1]
    if which == "packed":
        blob = layout.blob(layer.digest)
        blob.write_bytes(blob.read_bytes() + b"x")
    changes = {
        "packed": {},
        "diff_id": {"diff_id": "sha256:" + "0" * 64},
        "kind": {"media_type": "application/vnd.oci.image.layer.v1.tar+zstd"},
        "not gzip": {"media_type": "application/vnd.oci.image.layer.v1.tar"},
    }[which]
    (tmp_path / "root").mkdir()
    with pytest.raises(ImageUnavailable):
        Unpacking(tmp_path / "root").layer(layout.blob(layer.digest), layer.model_copy(update=changes))
    if which == "packed":
        with pytest.raises(ImageUnavailable):
            shelf.load(layout.folder)
        assert [path.name for path in (tmp_path / "images").iterdir()] == ["lock"]


def test_an_image_for_another_machine_is_refused(shelf: Images, tmp_path: Path) -> None:
    layout = small_layout(tmp_path / "layout", (entry("a"),), architecture="s390x")
    with pytest.raises(ImageUnavailable, match="is for s390x, and this machine is"):
        shelf.load(layout.folder)
    assert manifest_of(tmp_path / "layout", (entry("a"),))["digest"] != layout.manifest_digest
