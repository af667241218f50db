"""Images: what a recipe may say, where packages come from, what is taken away, and that the same gives the same."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from images.build import BuiltImage, build
from images.layer import write_layer
from images.lock import SHIPPED_LOCK, home_lock, lock_image, read_lock, read_locks
from images.oci_layout import Layout, engine_archive, read_layout, write_layout
from images.recipe import Recipe, User, names, read_recipe, shipped_recipe
from images.rootfs import EPOCH_SECONDS, check_can_build
from images.sources import machine_sources
from ledger.errors import BadInput, Unfit

USER = User(name="sandbox", uid=65532, gid=65532, home="/tmp")
RECIPE = Recipe(name="small", packages=("python3-minimal",), user=USER, env={"PATH": "/usr/bin:/bin"})


def _machine(root: Path, release: str, **files: str) -> Path:
    (root / "etc/apt/sources.list.d").mkdir(parents=True)
    (root / "etc/os-release").write_text(release)
    for name, text in files.items():
        path = root / "etc/apt" / name if name == "sources.list" else root / "etc/apt/sources.list.d" / name
        path.write_text(text)
    return root


DEBIAN = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'


def test_packages_come_from_the_distributions_own_sources_only(tmp_path: Path) -> None:
    root = _machine(tmp_path, DEBIAN, **{
        "sources.list": "# deb http://old.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian bookworm main contrib # x\n"
        "deb-src http://mirror.example/debian bookworm main\n"
        "deb http://mirror.example/debian bookworm-backports main\n"
        "deb https://vendor.example/linux bookworm stable\n"
        "deb https://vendor.example/apt vendor-bookworm main\n",
        "more.sources": "Types: deb deb-src\nURIs: http://mirror.example/debian-security\n"
        "Suites: bookworm-security sid\n"
        "Components: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n\n"
        "Types: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n",
    })  # fmt: skip
    sources = machine_sources(root)
    assert (sources.distribution, sources.codename) == ("debian-12", "bookworm")
    assert sources.stanzas == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/a.gpg\n\n"
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
    )


@pytest.mark.parametrize(
    ("release", "what"),
    [
        ("ID=fedora\nVERSION_CODENAME=x\n", "this is fedora"),
        ("", "this is neither"),
        (DEBIAN, "no source for bookworm"),
    ],
)
def test_a_machine_without_them_is_told_what_to_do(tmp_path: Path, release: str, what: str) -> None:
    with pytest.raises(Unfit, match=what) as unfit:
        machine_sources(_machine(tmp_path, release))
    assert unfit.value.remedy


def test_a_machine_that_cannot_build_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unfit, match="apt-get install mmdebstrap"):
        check_can_build()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("name = 'a'\npackages = []\nuser = {name = 'a', uid = 1, gid = 1, home = '/'}", "packages: "),
        ("name = 'a'\npackages = ['b']\nuser = {name = 'a', uid = 0, gid = 1, home = '/'}", "user.uid: "),
        ("name = 'a'\npackages = ['b']\nmirror = 'c'\nuser = {name = 'a', uid = 1, gid = 1, home = '/'}", "mirror: "),
        ("name = ", "is not TOML"),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_field(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=f"^{path}: {where}"):
        read_recipe(path)


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"^none: no such recipe; known recipes: sandbox-python$"):
        shipped_recipe("none")
    assert [shipped_recipe(name).name for name in names()] == names()


def _root_file_system(path: Path, *, moment: int, machine: str) -> Path:
    """What mmdebstrap could have left, on some machine at some moment."""
    byte_code = b"\xa7\r\r\n" + b"\x03\0\0\0" + b"12345678" + b"code"
    files = {
        "./etc/passwd": b"root:x:0:0:root:/root:/bin/bash\n", "./etc/group": b"root:x:0:\n",
        "./etc/hostname": machine.encode(), "./etc/resolv.conf": machine.encode(), "./etc/machine-id": machine.encode(),
        "./etc/shadow": b"root:*:20000:0:99999:7:::\n", "./etc/apt/sources.list": machine.encode(),
        "./usr/bin/su": b"su", "./usr/lib/a.pyc": byte_code, "./var/log/dpkg.log": machine.encode(),
        "./var/cache/apt/x": b"", "./var/lib/dpkg/status": b"Package: b\nVersion: 1\n\nPackage: a\n",
        "./var/lib/apt/lists/x": machine.encode(), "./usr/lib/python3.11/EXTERNALLY-MANAGED": b"",
    }  # fmt: skip
    with tarfile.open(path, "w") as tar:
        folder = tarfile.TarInfo("./usr")
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o755, moment
        tar.addfile(folder)
        for name, data in sorted(files.items(), reverse=moment % 2 == 0):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uname = len(data), moment, machine
            entry.mode = 0o4755 if name.endswith("su") else 0o644
            tar.addfile(entry, io.BytesIO(data))
        for name, kind, target in (
            ("./usr/bin/a", tarfile.LNKTYPE, "./usr/bin/su"),
            ("./dev/sda", tarfile.BLKTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mtime = kind, target, moment
            tar.addfile(entry)
    return path


def test_the_same_packages_give_the_same_layer_anywhere_and_any_day(tmp_path: Path) -> None:
    layers = []
    for moment, machine in ((1_700_000_000, "here"), (1_800_000_001, "there")):
        source = _root_file_system(tmp_path / f"{machine}.tar", moment=moment, machine=machine)
        assert write_layer(source, USER, tmp_path / f"{machine}.layer") == ["a", "b"]
        layers.append((tmp_path / f"{machine}.layer").read_bytes())
    assert layers[0] == layers[1]
    with tarfile.open(fileobj=io.BytesIO(layers[0])) as layer:
        members = {member.name: member for member in layer}
        assert sorted(members) == [
            "etc/group", "etc/passwd", "usr", "usr/bin/a", "usr/bin/su", "usr/lib/a.pyc",
            "var/lib/dpkg/status", "workspace",
        ]  # fmt: skip
        assert {member.mtime for member in members.values()} == {EPOCH_SECONDS}
        assert members["usr/bin/su"].mode == 0o755
        assert members["usr/bin/a"].linkname == "usr/bin/su"
        assert list(members)[-1] == "usr/bin/a"
        assert (members["workspace"].uid, members["workspace"].gid) == (65532, 65532)
        contents = {name: layer.extractfile(name) for name in ("etc/passwd", "etc/group", "usr/lib/a.pyc")}
        read = {name: content.read() for name, content in contents.items() if content}
    assert read["etc/passwd"].endswith(b"\nsandbox:x:65532:65532::/tmp:/bin/sh\n")
    assert read["etc/group"].endswith(b"\nsandbox:x:65532:\n")
    assert read["usr/lib/a.pyc"][4:8] == b"\x01\0\0\0"


def _layout(folder: Path) -> Layout:
    folder.mkdir()
    (folder / "layer.tar").write_bytes(bytes(10240))
    return write_layout(RECIPE, folder / "layer.tar", "amd64", folder / "layout")


def test_a_layout_is_the_same_each_time_and_is_checked_when_read(tmp_path: Path) -> None:
    one, other = _layout(tmp_path / "one"), _layout(tmp_path / "other")
    assert one.manifest_digest == other.manifest_digest
    assert read_layout(other.folder) == other
    blob = other.folder / "blobs/sha256" / other.config_digest.removeprefix("sha256:")
    blob.write_bytes(blob.read_bytes().replace(b"amd64", b"arm64"))
    with pytest.raises(BadInput, match="has other content"):
        read_layout(other.folder)
    with pytest.raises(BadInput, match="is not an image layout"):
        read_layout(tmp_path)


def test_an_engines_archive_carries_the_exact_configuration(tmp_path: Path) -> None:
    layout = _layout(tmp_path / "one")
    with tarfile.open(fileobj=io.BytesIO(b"".join(engine_archive(layout)))) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        read = {name: file.read() for name, file in files.items() if file}
    (entry,) = json.loads(read["manifest.json"])
    assert entry["Config"] == f"blobs/sha256/{layout.config_digest.removeprefix('sha256:')}"
    assert entry["RepoTags"] == [f"patchyard/small:{layout.manifest_digest.replace(':', '-')}"]
    config = json.loads(read[entry["Config"]])
    assert config["config"]["User"] == "65532:65532"
    assert config["rootfs"]["diff_ids"] == [layout.layer_digest]
    assert len(read[entry["Layers"][0]]) == 10240


def _built(digit: str, name: str = "sandbox-python") -> BuiltImage:
    return BuiltImage(
        name=name,
        manifest_digest="sha256:" + digit * 64,
        config_digest="sha256:" + "c" * 64,
        layout=Path("/nowhere"),
        distribution="debian-12",
        architecture="amd64",
        packages=("a", "b"),
    )


def test_this_machines_lock_comes_before_the_repositorys(tmp_path: Path) -> None:
    shipped, home = tmp_path / "lock.toml", home_lock(tmp_path / "home")
    lock_image(shipped, _built("1"), date(2026, 1, 1))
    lock_image(shipped, _built("2", "other"), date(2026, 1, 1))
    assert read_locks([home, shipped])["sandbox-python"].digest == "sha256:" + "1" * 64
    lock_image(home, _built("3"), date(2026, 1, 2))
    both = read_locks([home, shipped])
    assert both["sandbox-python"].digest == "sha256:" + "3" * 64
    assert both["other"].digest == "sha256:" + "2" * 64
    assert both["sandbox-python"].packages == 2


def test_a_lock_keeps_its_comments_and_other_entries(tmp_path: Path) -> None:
    path = tmp_path / "lock.toml"
    lock_image(path, _built("1"), date(2026, 1, 1))
    path.write_text("# mine\n" + path.read_text())
    lock_image(path, _built("2", "other"), date(2026, 1, 2))
    lock_image(path, _built("4"), date(2026, 1, 3))
    text = path.read_text()
    assert "# mine" in text
    assert text.count("[images.sandbox-python]") == text.count("[images.other]") == 1
    assert read_lock(path)["sandbox-python"].built == date(2026, 1, 3)


def test_a_malformed_lock_is_refused_with_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "lock.toml"
    path.write_text('[images.a]\ndigest = "latest"\n')
    with pytest.raises(BadInput, match=f"^{path}: images.a.digest: .*; write it again: patchyard images lock$"):
        read_lock(path)
    path.write_text("[images")
    with pytest.raises(BadInput, match="is not TOML"):
        read_lock(path)


def test_the_repositorys_lock_names_every_recipe() -> None:
    assert set(read_lock(SHIPPED_LOCK)) == set(names())


@pytest.mark.engine
def test_the_sandbox_image_has_no_trace_of_its_builder_and_no_privileged_file(sandbox_layout: Layout) -> None:
    layer = sandbox_layout.folder / "blobs/sha256" / sandbox_layout.layer_digest.removeprefix("sha256:")
    with tarfile.open(layer) as tree:
        members = {member.name: member for member in tree}
        passwd = tree.extractfile("etc/passwd")
        assert passwd is not None
        assert b"\nsandbox:x:65532:65532::/tmp:/bin/sh\n" in passwd.read()
    assert not [name for name, member in members.items() if member.mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not [
        name for name, member in members.items() if member.isdev() or set(member.pax_headers) - {"path", "linkpath"}
    ]
    assert not [
        name for name in members if name.startswith(("etc/apt/", "var/lib/apt/", "var/cache/", "var/log/", "tmp/"))
    ]
    assert not {"etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/shadow"} & set(members)
    assert {"usr/bin/python3", "usr/bin/git", "usr/bin/rg", "usr/bin/patch", "usr/bin/gcc", "usr/bin/tar"} < set(
        members
    )


@pytest.mark.slow
@pytest.mark.engine
def test_two_builds_on_one_day_have_the_same_digest(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as at_once:
        one, other = at_once.map(lambda name: build(RECIPE, tmp_path / name), ("one", "other"))
    assert (one.manifest_digest, one.config_digest) == (other.manifest_digest, other.config_digest)
    assert one.layout.name == f"small-{one.manifest_digest[7:23]}"
    assert "python3-minimal" in one.packages
    assert [path.name for path in (tmp_path / "one").iterdir()] == [one.layout.name]
