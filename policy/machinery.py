"""What decides how tests run and are counted: not an agent's to change, unless the job says so.

A patch that adds a `conftest.py` can make every test pass, hidden ones too, without mending anything. So what a test
runner reads before it runs a test is protected in every job, beside what the job's `protected` names. A job that wants
such a file changed gives it back in that same list: `protected: ["tests/**", "!tests/conftest.py"]`.

This raises a wall around the runner, not around its process: code under test runs in it and can do what it likes there.
What that leaves open is written down in `docs/security.md`.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from ledger.records.job import JobSpec
from policy.paths import matching, verdict_on

MACHINERY = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",  # what pytest reads
    "sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link",  # what Python runs before anything else
    "*.egg-info/**", "*.dist-info/**", "*.egg-info",  # where pytest looks for plug-ins
    "*.pyc", "*.pyo", "__pycache__/**",  # what is run in place of the source that stands beside it
    ".coveragerc", ".mocharc*", "jest.config.*", "vitest.config.*", ".rspec", ".cargo/config", ".cargo/config.toml",
)  # fmt: skip
"""Patterns as in a job's `protected`."""

_READ_BY: dict[str, tuple[str, ...]] = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "gmake": ("Makefile", "makefile", "GNUmakefile"),
    "just": ("justfile", ".justfile", "Justfile"),
    "tox": ("tox.ini", "tox.toml"),
    "nox": ("noxfile.py",),
    "invoke": ("tasks.py",),
    "rake": ("Rakefile",),
    "ant": ("build.xml",),
}
"""What a program reads to know what it shall do."""

_SECTIONS: dict[str, str] = {"setup.cfg": "tool:pytest", "tox.ini": "pytest"}
SETTINGS = ("pyproject.toml", "package.json", *_SECTIONS)
"""Files of many purposes, of which a part is a test runner's."""

_NOT_SHADOWED = {"test", "this", "antigravity", "idlelib", "lib2to3", "turtledemo", "__future__"}
SHADOWED = (sys.stdlib_module_names - _NOT_SHADOWED) | {
    "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "attr", "attrs", "pygments",
    "py", "xdist", "execnet", "pytest_cov", "pytest_asyncio", "coverage", "hypothesis", "_hypothesis_pytestplugin",
}  # fmt: skip
"""Modules that a test runner is made of: one of the same name at the root of a repository is imported in their place,
since Python looks in the folder that it was started in first."""
_TEST_MODULE = re.compile(r"(?:test_.*|.*_test)\.py\Z")


def protected_among(job: JobSpec, paths: Iterable[str]) -> list[str]:
    """Those of `paths` that no patch of this job may change, in their order."""
    return [path for path in paths if is_protected(job, path)]


def is_protected(job: JobSpec, path: str) -> bool:
    """Whether `path` is protected: by the job's own list, whose last matching line counts, else as machinery."""
    said = verdict_on(job.protected, path)
    return bool(matching(MACHINERY, (path,))) if said is None else said


def is_given_back(job: JobSpec, path: str) -> bool:
    """Whether the job says that `path` is not protected."""
    return verdict_on(job.protected, path) is False


def shadows(path: str) -> bool:
    """Whether a new file at `path` would be imported in place of a module that runs the tests."""
    first, _, rest = path.partition("/")
    if not rest:
        return first.partition(".")[0] in SHADOWED and first.endswith((".py", ".so", ".pyc"))
    return first in SHADOWED and rest.partition(".")[0] == "__init__" and "/" not in rest


def module_beside(path: str) -> str | None:
    """The `x.py` that is no longer imported once `path` is there: `x/__init__.py`, or an `x.so`. None for others."""
    folder, _, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".")
    if stem == "__init__" and dot and folder:
        return f"{folder}.py"
    if suffix == "so" or suffix.endswith(".so"):
        return f"{folder}/{stem}.py" if folder else f"{stem}.py"
    return None


def read_by_command(command: Sequence[str], path: str) -> bool:
    """Whether `command` names the file at `path`, or a program that takes its orders from it.

    Test modules that it names are not meant: whether those are an agent's to change is the job's to say.
    """
    name = path.rpartition("/")[2]
    if is_test_module(name):
        return False
    for word in _words(command):
        plain = word.removeprefix("/workspace/").removeprefix("./")
        if plain and (path == plain or path.endswith("/" + plain)):
            return True
        if name in _READ_BY.get(word.rpartition("/")[2], ()):
            return True
    return False


def is_test_module(name: str) -> bool:
    """Whether a file of this name is one of pytest's tests."""
    return bool(_TEST_MODULE.match(name))


def _words(command: Sequence[str]) -> list[str]:
    """The words of a command, and those of scripts among its arguments."""
    words = list(command)
    for argument in command:
        if any(character in argument for character in " \t\n;&|()<>=\"'"):
            lexer = shlex.shlex(argument, posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, ""
            try:
                words += list(lexer)
            except ValueError:
                words += argument.split()
            words += re.split(r"[\s;&|()<>=\"']+", argument)
    return words


def runner_settings(name: str, data: bytes | None) -> Any:
    """What a file called `name` (of `SETTINGS`) tells a test runner; equal for two files that tell it the same.

    None when there is nothing in it for one. A file that cannot be read is equal to no other.
    """
    if data is None:
        return None
    try:
        text = data.decode()
        if name == "pyproject.toml":
            return _of_pyproject(tomllib.loads(text))
        if name == "package.json":
            found = json.loads(text)
            return {key: found[key] for key in ("scripts", "jest", "mocha", "vitest", "ava") if key in found} or None
        return _section(text, _SECTIONS[name])
    except (ValueError, RecursionError, TypeError, AttributeError):
        return {"unreadable": data}


def _of_pyproject(found: dict[str, Any]) -> Any:
    tool, project = found.get("tool", {}), found.get("project", {})
    plugins = project.get("entry-points", {}).get("pytest11")
    told = {key: tool[key] for key in ("pytest", "coverage", "tox", "nox") if key in tool}
    return (told | ({"pytest11": plugins} if plugins else {})) or None


def _section(text: str, section: str) -> Any:
    """The lines of a section of an INI file, by the rules of pytest's own reader."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.startswith(f"[{section}]")
        if inside:
            lines.append(line)
    return lines or None
