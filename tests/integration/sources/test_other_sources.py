"""Archives, packages and folders become mirrors with one commit that is the same on every host."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ledger.errors import BadInput, Permanent, Unfit
from ledger.records.source import SourceRef
from runners.workspace.download import Downloads
from runners.workspace.errors import CommitMissing, RepositoryMissing, RepoUnavailable, SourceRefused, WrongDigest
from runners.workspace.mirrors import SourceLimits, place_of
from runners.workspace.pypi import PackageIndex, PipSettings, ask_pip
from runners.workspace.source import Mirrors, parse_source
from runners.workspace.store import FILE, Change
from runners.workspace.tarball import TreeLimits
from tests.integration.sources.conftest import no_object
from tests.integration.sources.servers import Index, answering, files_of, reply, served
from tests.unit.workspace.trees import git, read

# A folder, a zip and a tar of this one file have the same tree, and so the same commit, everywhere and for ever.
THE_COMMIT = "2af1f9e160750d82d695d337b5dc032385e1bdc5"


def tar_gz(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "thing-1.0.tar.gz"
    path.write_bytes(tar_gz({"thing-1.0/a.py": b"one\n"}))
    return path


# -- archives ----------------------------------------------------------------------------------------------------------


def test_the_same_files_have_the_same_commit_wherever_they_come_from(tmp_path: Path, archive: Path) -> None:
    zip_path, folder = tmp_path / "x.zip", tmp_path / "folder"
    with zipfile.ZipFile(zip_path, "w") as packed:
        packed.writestr("a.py", b"one\n")
    folder.mkdir()
    (folder / "a.py").write_bytes(b"one\n")
    bases = [
        Mirrors(tmp_path / f"home{number}").resolve(parse_source(name, tmp_path)).base
        for number, name in enumerate(
            (
                f"thing-1.0.tar.gz#sha256={sha256(archive.read_bytes())}",
                f"x.zip#sha256={sha256(zip_path.read_bytes())}",
                "folder",
            )
        )
    ]
    assert {base.commit for base in bases} == {THE_COMMIT}


def test_an_archive_is_opened_by_a_worker_of_another_home(mirrors: Mirrors, archive: Path, tmp_path: Path) -> None:
    source = parse_source(f"{archive}#sha256={sha256(archive.read_bytes())}", tmp_path)
    base = mirrors.resolve(source, "HEAD").base
    store = Mirrors(tmp_path / "worker").open(source, base.commit, no_object)
    assert read(store, base.tree) == {"a.py": Change(FILE, b"one\n")}
    git(store.path, "fsck", "--strict", base.commit)


def test_a_mirror_that_lost_one_file_is_built_anew(mirrors: Mirrors, home: Path, archive: Path, tmp_path: Path) -> None:
    source = parse_source(f"{archive}#sha256={sha256(archive.read_bytes())}", tmp_path)
    base = mirrors.resolve(source).base
    blob = hashlib.sha1(b"blob 4\0one\n").hexdigest()  # noqa: S324 - git's own digest
    (home / "mirrors" / place_of(source) / "objects" / blob[:2] / blob[2:]).unlink()
    assert read(Mirrors(home).open(source, base.commit, no_object), base.tree) == {"a.py": Change(FILE, b"one\n")}


def test_an_archive_with_other_bytes_than_promised(mirrors: Mirrors, archive: Path, tmp_path: Path) -> None:
    digest = sha256(archive.read_bytes())
    source = parse_source(f"{archive}#sha256={digest}", tmp_path)
    commit = mirrors.resolve(source).base.commit
    archive.write_bytes(b"other")
    other = Mirrors(tmp_path / "other")
    for call in (lambda: other.resolve(source), lambda: other.open(source, commit, no_object)):
        with pytest.raises(WrongDigest) as error:
            call()
        told = (
            f"{archive}: has sha256 {sha256(b'other')}, not {digest}; if you trust what is there now, write that digest"
        )
        assert error.value.message == told
    assert mirrors.open(source, commit, no_object).has(commit)
    archive.unlink()
    with pytest.raises(RepositoryMissing):
        other.resolve(source)
    with pytest.raises(RepoUnavailable):
        other.open(source, commit, no_object)


def test_an_archive_has_no_commits_to_choose_from(mirrors: Mirrors, archive: Path, tmp_path: Path) -> None:
    source = parse_source(f"{archive}#sha256={sha256(archive.read_bytes())}", tmp_path)
    with pytest.raises(CommitMissing, match="has no commits, so no main; leave the base out"):
        mirrors.resolve(source, "main")
    assert mirrors.resolve(source, THE_COMMIT).base.commit == THE_COMMIT
    with pytest.raises(CommitMissing, match="submit the job again"):
        Mirrors(tmp_path / "worker").open(source, "1" * 40, no_object)


def test_a_hostile_archive_is_one_clear_line(mirrors: Mirrors, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "evil.tar.gz"
    path.write_bytes(tar_gz({"t/../../x": b""}))
    with pytest.raises(SourceRefused) as error:
        mirrors.resolve(parse_source(f"{path}#sha256={sha256(path.read_bytes())}", tmp_path))
    assert error.value.message == f"{path}: cannot be taken: a path with '..': t/../../x; make an archive without it"
    assert [p for p in (home / "mirrors").iterdir() if p.is_dir()] == []


def test_an_archive_from_a_url_is_fetched_once(mirrors: Mirrors, home: Path, archive: Path) -> None:
    digest = sha256(archive.read_bytes())
    with served(files_of(archive.parent)) as url:
        source = parse_source(f"{url}/{archive.name}#sha256={digest}", Path("/"))
        base = mirrors.resolve(source).base
    assert base.commit == THE_COMMIT
    mirrors.discard(source)
    assert read(mirrors.open(source, base.commit, no_object), base.tree) == {"a.py": Change(FILE, b"one\n")}
    kept = home / "downloads" / digest
    kept.write_bytes(b"damaged")
    mirrors.discard(source)
    with pytest.raises(RepoUnavailable):
        mirrors.open(source, base.commit, no_object)


def test_a_url_that_gives_something_else_leaves_nothing(mirrors: Mirrors, home: Path, archive: Path) -> None:
    with served(files_of(archive.parent)) as url:
        with pytest.raises(WrongDigest, match="has sha256"):
            mirrors.resolve(parse_source(f"{url}/{archive.name}#sha256={'0' * 64}", Path("/")))
        with pytest.raises(RepositoryMissing, match=r"cannot be read: .*/none.zip answered 404"):
            mirrors.resolve(parse_source(f"{url}/none.zip#sha256={'0' * 64}", Path("/")))
    assert list((home / "downloads").iterdir()) == []


def test_credentials_go_to_their_own_host_only_and_into_no_message(mirrors: Mirrors, archive: Path) -> None:
    data = archive.read_bytes()
    seen: list[tuple[str, str, str | None]] = []

    def respond(request: BaseHTTPRequestHandler) -> None:
        seen.append((request.headers["Host"], request.path, request.headers.get("Authorization")))
        port = request.headers["Host"].split(":")[1]
        if request.path == "/moved.zip":
            reply(request, 302, Location=f"http://localhost:{port}/there.zip")
        elif request.path == "/there.zip":
            reply(request, 200, data)
        else:
            reply(request, 403)

    with served(answering(respond)) as url:
        host = url.removeprefix("http://")
        mirrors.resolve(parse_source(f"http://me:s3cr3t@{host}/moved.zip#sha256={sha256(data)}", Path("/")))
        with pytest.raises(BadInput) as error:
            mirrors.resolve(parse_source(f"http://me:s3cr3t@{host}/no.zip?token=t0ken#sha256={'0' * 64}", Path("/")))
    assert seen[0] == (host, "/moved.zip", "Basic bWU6czNjcjN0")
    assert seen[1] == (f"localhost:{host.split(':')[1]}", "/there.zip", None)
    assert "s3cr3t" not in error.value.message
    assert "t0ken" not in error.value.message


def test_a_redirect_leads_to_no_file(mirrors: Mirrors, archive: Path) -> None:
    with (
        served(answering(lambda request: reply(request, 302, Location=archive.as_uri()))) as url,
        pytest.raises(RepositoryMissing, match="cannot be read"),
    ):
        mirrors.resolve(parse_source(f"{url}/x.zip#sha256={sha256(archive.read_bytes())}", Path("/")))


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "plain"
    (path / "pkg/__pycache__").mkdir(parents=True)
    (path / "a.py").write_text("one\n")
    (path / "pkg/run").write_text("#!/bin/sh\n")
    (path / "pkg/run").chmod(0o755)
    (path / "pkg/__pycache__/a.pyc").write_text("x")
    (path / "build").mkdir()
    (path / "build/out").write_text("x")
    (path / ".gitignore").write_text("build/\n")
    (path / "link").symlink_to("pkg/run")
    return path


def test_a_folder_travels_as_a_pack_and_later_changes_change_nothing(tmp_path: Path, folder: Path) -> None:
    resolution = Mirrors(tmp_path / "submit").resolve(parse_source("plain", tmp_path))
    assert resolution.pack is not None
    assert resolution.source.pack_sha256 == sha256(resolution.pack)
    (folder / "a.py").write_text("changed\n")
    objects = {sha256(resolution.pack): resolution.pack}
    worker = Mirrors(tmp_path / "worker")
    store = worker.open(resolution.source, resolution.base.commit, objects.__getitem__)
    assert set(read(store, resolution.base.tree)) == {"a.py", "pkg/run", ".gitignore", "link"}
    assert store.blob(store.entry(resolution.base.tree, "a.py").id) == b"one\n"  # type: ignore[union-attr]
    assert worker.open(resolution.source, resolution.base.commit, no_object).has(resolution.base.tree)


def test_a_changed_folder_is_another_source_and_the_same_folder_the_same(tmp_path: Path, folder: Path) -> None:
    source = parse_source("plain", tmp_path)
    first = Mirrors(tmp_path / "home").resolve(source)
    again = Mirrors(tmp_path / "home").resolve(source)
    (folder / "a.py").write_text("changed\n")
    changed = Mirrors(tmp_path / "home").resolve(source)
    assert first == again
    assert place_of(first.source) != place_of(changed.source)
    assert [p.name for p in (tmp_path / "home/mirrors").iterdir() if p.name.startswith(".")] == []


def test_a_pack_that_is_not_the_promised_one(tmp_path: Path, folder: Path) -> None:
    resolution = Mirrors(tmp_path / "submit").resolve(parse_source("plain", tmp_path))
    with pytest.raises(WrongDigest):
        Mirrors(tmp_path / "worker").open(resolution.source, resolution.base.commit, lambda _: b"PACK")


def test_the_home_inside_of_a_folder_is_no_part_of_it(tmp_path: Path, folder: Path) -> None:
    source = parse_source("plain", tmp_path)
    outside = Mirrors(tmp_path / "elsewhere").resolve(source)
    assert Mirrors(folder / ".patchyard").resolve(source) == outside


def test_a_folder_that_cannot_travel_is_one_clear_line(tmp_path: Path, folder: Path) -> None:
    small = Mirrors(tmp_path / "home", limits=SourceLimits(tree=TreeLimits(max_files=2)))
    with pytest.raises(SourceRefused, match="too many files cannot be part of a workspace"):
        small.resolve(parse_source("plain", tmp_path))
    os.mkfifo(folder / "pipe")
    with pytest.raises(SourceRefused, match=f"{folder}/pipe: a named pipe cannot be part of a workspace; leave it out"):
        Mirrors(tmp_path / "home").resolve(parse_source("plain", tmp_path))
    with pytest.raises(RepositoryMissing, match="no such folder"):
        Mirrors(tmp_path / "home").resolve(SourceRef(kind="folder", location=str(tmp_path / "gone")))


# -- packages ----------------------------------------------------------------------------------------------------------

SDIST = tar_gz({"small_thing-1.0/setup.py": b"raise SystemExit('never run')\n", "small_thing-1.0/a.py": b"one\n"})
OTHER = tar_gz({"small_thing-2.0/a.py": b"two\n"})
FILES = {
    "small_thing-1.0-py3-none-any.whl": b"wheel",
    "small_thing-1.0.tar.gz": SDIST,
    "small_thing-2.0.tar.gz": OTHER,
}
DIGESTS = {name: sha256(data) for name, data in FILES.items()}


@contextmanager
def package_index(home: Path, index: Index, path: str = "/simple", login: str = "") -> Iterator[Mirrors]:
    with served(answering(index.respond)) as url:
        at = url.replace("http://", f"http://{login}") + path
        settings = PipSettings((at,), (), None, None, None)
        yield Mirrors(home, index=PackageIndex(Downloads(home / "downloads"), settings))


@pytest.mark.parametrize("speaks_json", [True, False])
@pytest.mark.parametrize("tells_digests", [True, False])
def test_a_package_is_found_and_its_source_distribution_taken(
    home: Path, speaks_json: bool, tells_digests: bool
) -> None:
    index = Index(FILES, DIGESTS if tells_digests else {}, speaks_json=speaks_json)
    with package_index(home, index) as mirrors:
        source = parse_source(f"pypi:Small.Thing==1.0#sha256={sha256(SDIST)}", Path("/"))
        base = mirrors.resolve(source).base
    assert [path for path, _ in index.asked] == ["/simple/small-thing/", "/files/small_thing-1.0.tar.gz"]
    store = mirrors.open(source, base.commit, no_object)
    assert set(read(store, base.tree)) == {"setup.py", "a.py"}
    assert (home / "downloads" / sha256(SDIST)).read_bytes() == SDIST
    mirrors.discard(source)
    assert mirrors.open(source, base.commit, no_object).has(base.tree)
    assert len(index.asked) == 2


def test_the_digest_decides_even_when_the_version_is_spelled_otherwise(home: Path) -> None:
    with package_index(home, Index(FILES, DIGESTS, speaks_json=True)) as mirrors:
        source = parse_source(f"pypi:small-thing==1.0.0#sha256={sha256(SDIST)}", Path("/"))
        assert mirrors.resolve(source).base.tree


@pytest.mark.parametrize("tells_digests", [True, False])
def test_a_package_with_another_digest(home: Path, tells_digests: bool) -> None:
    with (
        package_index(home, Index(FILES, DIGESTS if tells_digests else {}, speaks_json=True)) as mirrors,
        pytest.raises(WrongDigest, match=f"pypi:small-thing==1.0: has sha256 {sha256(SDIST)}, not {'0' * 64}"),
    ):
        mirrors.resolve(parse_source(f"pypi:small-thing==1.0#sha256={'0' * 64}", Path("/")))
    assert not list(home.glob("downloads/*"))


def test_a_version_or_package_that_is_not_there(home: Path) -> None:
    with package_index(home, Index(FILES, DIGESTS, speaks_json=False)) as mirrors:
        for name in ("small-thing==9.9", "other-thing==1.0"):
            with pytest.raises(RepositoryMissing, match="no index that pip uses here has its source distribution"):
                mirrors.resolve(parse_source(f"pypi:{name}#sha256={'0' * 64}", Path("/")))


def test_a_private_index_gets_its_login_and_no_message_does(home: Path) -> None:
    index = Index(FILES, DIGESTS, speaks_json=True)
    with package_index(home, index, login="me:s3cr3t@") as mirrors:
        mirrors.resolve(parse_source(f"pypi:small-thing==1.0#sha256={sha256(SDIST)}", Path("/")))
    assert {login for _, login in index.asked} == {"Basic bWU6czNjcjN0"}
    settings = PipSettings(("http://me:s3cr3t@127.0.0.1:9/simple",), (), None, None, None)
    silent = Mirrors(home / "x", index=PackageIndex(Downloads(home / "x/downloads"), settings))
    with pytest.raises(BadInput, match="cannot be read: http://") as error:
        silent.resolve(parse_source(f"pypi:small-thing==1.0#sha256={'0' * 64}", Path("/")))
    assert "s3cr3t" not in error.value.message


def test_a_page_that_is_no_index_is_told(home: Path) -> None:
    with served(answering(lambda request: reply(request, 200, b"[]", Content_Type="application/json"))) as url:
        settings = PipSettings((f"{url}/simple",), (), None, None, None)
        mirrors = Mirrors(home, index=PackageIndex(Downloads(home / "downloads"), settings))
        with pytest.raises(RepositoryMissing, match="is no page of a package index"):
            mirrors.resolve(parse_source(f"pypi:small-thing==1.0#sha256={'0' * 64}", Path("/")))


def test_folders_and_pages_on_disk_are_indexes_too(home: Path, tmp_path: Path) -> None:
    links, simple = tmp_path / "links", tmp_path / "simple/small-thing"
    links.mkdir()
    simple.mkdir(parents=True)
    (links / "small_thing-1.0.tar.gz").write_bytes(SDIST)
    (simple / "small_thing-2.0.tar.gz").write_bytes(OTHER)
    (simple / "index.html").write_text('<a href="small_thing-2.0.tar.gz">x</a>')
    settings = PipSettings(((tmp_path / "simple").as_uri(),), (str(links), str(tmp_path / "none")), None, None, None)
    mirrors = Mirrors(home, index=PackageIndex(Downloads(home / "downloads"), settings))
    for version, data in (("1.0", SDIST), ("2.0", OTHER)):
        assert mirrors.resolve(parse_source(f"pypi:small-thing=={version}#sha256={sha256(data)}", Path("/"))).base.tree


def test_pip_tells_where_it_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nextra-index-url = http://127.0.0.1:1/two\n[download]\nproxy = http://127.0.0.1:2\n")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/one")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path}/a {tmp_path}/b")
    monkeypatch.setenv("PIP_CERT", "/some/ca.pem")
    told = ask_pip()
    assert told.indexes[0] == "http://127.0.0.1:1/one"
    assert "http://127.0.0.1:1/two" in told.indexes
    assert told.find_links == (f"{tmp_path}/a", f"{tmp_path}/b")
    assert (told.cert, told.proxy) == ("/some/ca.pem", "http://127.0.0.1:2")
    assert Path(told.extra_cert or "").is_file()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert ask_pip().indexes == ()


def test_an_environment_without_pip_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(Unfit, match="does not say which package index it uses"):
        ask_pip(str(python))
    assert issubclass(Unfit, Permanent)


def test_what_pip_is_told_is_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(FILES, DIGESTS, speaks_json=True)
    with served(answering(index.respond)) as url:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.setenv(name, "")
        source = parse_source(f"pypi:small-thing==1.0#sha256={sha256(SDIST)}", Path("/"))
        assert Mirrors(home).resolve(source).base.tree
    assert index.asked[0][0] == "/simple/small-thing/"
