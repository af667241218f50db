"""What a verification asks of a patch before it runs anything: is the way tests are run and counted still the base's?

Looked at are the changes between base and head, whatever tool made them. What the rules of `policy.machinery` can tell
from a path alone an agent is told when it tries; here the content counts too: the part of a `pyproject.toml` that is
pytest's, files that the job's commands name, modules that would be imported in another's place, and names that are
another's where names have no case.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from ledger.records.job import JobSpec
from policy.machinery import (
    SETTINGS,
    is_given_back,
    is_test_module,
    module_beside,
    protected_among,
    read_by_command,
    runner_settings,
    shadows,
)
from runners.workspace.diff import NO_ID, ChangedPath, matches
from runners.workspace.errors import InvalidPath
from runners.workspace.store import EXECUTABLE, FILE, Store


def protected_changes(store: Store, job: JobSpec, tree: str, changes: list[ChangedPath]) -> dict[str, str]:
    """The paths that differ between the job's base and `tree` and may not, each with what is wrong with it, sorted.

    Raises `ObjectUnreadable`.
    """
    found = {path: _why(job, path) for path in protected_among(job, [change.path for change in changes])}
    rest = [change for change in changes if change.path not in found and not is_given_back(job, change.path)]
    for change in rest:
        if why := _changed_machinery(store, job, tree, change):
            found[change.path] = why
    added = [change.path for change in rest if change.kind == "added"]
    found |= {path: f"is {other} where names have no case" for path, other in _collisions(store, tree, added)}
    return dict(sorted(found.items()))


def _why(job: JobSpec, path: str) -> str:
    return "is protected" if matches(job.protected, path) else "decides how tests run"


def _changed_machinery(store: Store, job: JobSpec, tree: str, change: ChangedPath) -> str | None:
    path, name = change.path, change.path.rpartition("/")[2]
    if any(read_by_command(command.command, path) for command in (job.tests, job.acceptance) if command):
        return "is what the test command runs"
    if name in SETTINGS:
        before, after = (
            runner_settings(name, _content(store, mode, object_id))
            for mode, object_id in ((change.old_mode, change.old_id), (change.new_mode, change.new_id))
        )
        if before != after:
            return "tells the test runner something else"
    if change.kind == "added" and shadows(path):
        return "would be imported in place of a module that runs the tests"
    if change.kind == "added" and hides_a_module(store, tree, path):
        return f"would be imported in place of {module_beside(path)}"
    return None


def hides_a_module(store: Store, tree: str, path: str) -> bool:
    """Whether a module of `tree` is no longer imported because of the file at `path`."""
    beside = module_beside(path)
    return beside is not None and _is_there(store, tree, beside)


def is_a_test(path: str) -> bool:
    """Whether a file at `path` is a test by the names that people give."""
    *folders, name = path.split("/")
    return is_test_module(name) or any(folder in ("test", "tests") for folder in folders)


def _is_there(store: Store, tree: str, path: str) -> bool:
    try:
        return store.entry(tree, path) is not None
    except InvalidPath:
        return False


def _content(store: Store, mode: int, object_id: str) -> bytes | None:
    """None for what is no file: a link is followed by a test runner, and so tells it something else."""
    if mode in (FILE, EXECUTABLE):
        return store.blob(object_id)
    return None if object_id == NO_ID else f"a link or a submodule, {object_id}".encode() + b"\xff"


def _collisions(store: Store, tree: str, added: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each of the `added` paths that has a twin in `tree` but for case or composition, with the twin."""
    folders: dict[str, dict[str, list[str]]] = {}
    for path in added:
        parts = path.split("/")
        for depth, name in enumerate(parts):
            folder = "/".join(parts[:depth])
            if folder not in folders:
                folders[folder] = _names(store, tree, folder)
            twins = [other for other in folders[folder].get(_folded(name), ()) if other != name]
            if twins:
                yield path, "/".join(filter(None, (folder, twins[0])))
                break


def _names(store: Store, tree: str, folder: str) -> dict[str, list[str]]:
    entry = store.entry(tree, folder) if folder else None
    names: dict[str, list[str]] = {}
    for raw in store.raw_tree(entry.id if entry else tree):
        name = raw.name.decode("utf-8", "surrogateescape")
        names.setdefault(_folded(name), []).append(name)
    return names


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
