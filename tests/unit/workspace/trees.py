"""Trees for tests: hypothesis strategies, and git itself as the judge."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from runners.workspace.errors import InvalidPath
from runners.workspace.paths import check_path
from runners.workspace.store import EMPTY_TREE, EXECUTABLE, FILE, SYMLINK, Change, Store

Files = dict[str, Change]

_names = st.one_of(
    st.sampled_from(
        [
            "a",
            "b",
            "src",
            "tests",
            "x.py",
            "with space",
            "uml\u00e4ut",
            "new\nline",
            "tab\tq\"u'o\\te",
            "-dash",
            " lead",
        ]
    ),
    st.binary(min_size=1, max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.text(min_size=1, max_size=90),
).filter(lambda name: _fits(name))


def _fits(name: str) -> bool:
    if "/" in name:
        return False
    try:
        check_path(name, link=True)
    except InvalidPath:
        return False
    # Surrogates that UTF-8 could have written are another spelling of the same bytes.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == name


_contents = st.one_of(
    st.sampled_from([b"", b"\n", b"a\nb\nc\n", b"a\r\nb\r\n", b"no newline", b"\0binary\xff", b"x" * 600]),
    st.binary(max_size=300),
    st.lists(st.sampled_from([b"one", b"two", b"  three", b"", b"\xe4\xff"]), max_size=30).map(lambda p: b"\n".join(p)),
)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    mode = draw(st.sampled_from([FILE, FILE, EXECUTABLE, SYMLINK]))
    if mode == SYMLINK:
        return Change(mode, draw(st.sampled_from([b"a", b"missing", b"./b", b"sp ace", b"\xff\n"])))
    return Change(mode, draw(_contents))


@st.composite
def file_sets(draw: st.DrawFn, max_size: int = 12) -> Files:
    """Files by path, with no path below another file's."""
    paths = draw(st.lists(st.lists(_names, min_size=1, max_size=4).map("/".join), max_size=max_size, unique=True))
    files: Files = {}
    for path in paths:
        taken = any(path.startswith(other + "/") or other.startswith(path + "/") for other in files)
        if not taken:
            files[path] = draw(changes())
    return files


def write(store: Store, files: Mapping[str, Change]) -> str:
    return store.with_changes(EMPTY_TREE, files)


def read(store: Store, tree: str) -> Files:
    return {entry.path: Change(entry.mode, store.blob(entry.id)) for entry in store.walk(tree)}


def git(folder: Path, *args: str, data: bytes | None = None) -> bytes:
    """Run git as a user would, without anybody's configuration."""
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "2024-05-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_COMMITTER_DATE": "2024-05-01T00:00:00Z",
    }  # fmt: skip
    done = subprocess.run(["git", *args], cwd=folder, env=env, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout
