"""A terminal that knows ASCII only gets all that it can show; machines get UTF-8 from every one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from defusedxml import ElementTree

from tests.integration.cli.played import PATCH, play, spec, submit

ISSUE = "Café is wrong… \N{GRINNING FACE}"
SETTINGS = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
]


def call(settings: dict[str, str], *arguments: str) -> tuple[int, bytes, bytes]:
    """The command line in a process with that encoding."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    done = subprocess.run(
        [sys.executable, "-m", "patchyard.cli", *arguments], env=kept | settings, capture_output=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def played(ledger, place):
    """A job with words beyond ASCII, and settings with some in a comment."""
    submit(ledger, "b", spec("j", issue=ISSUE))
    play(ledger, "j", text=ISSUE)
    (place / "patchyard.toml").write_text("# für alle\nsandbox_slots = 2\n", encoding="utf-8")


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings.values())))
@pytest.mark.parametrize("command", [("show", "b/j"), ("trace", "b/j"), ("results", "b"), ("list",), ("--help",)])
def test_people_see_what_their_terminal_can_show(played, settings, command):
    status, out, err = call(settings, *command)
    assert (status, err) == (0, b"")
    encoding = settings.get("PYTHONIOENCODING", "ascii")
    shown = out.decode(encoding)
    if command == ("show", "b/j"):
        cafe = "Café" if encoding == "latin-1" else r"Caf\xe9"
        assert rf"{cafe} is wrong... \U0001f600" in shown
        assert "run_tests {} -> 71 passed" in shown


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings.values())))
def test_machines_get_utf_8(played, settings):
    for command in (("list", "--json"), ("watch", "b", "--json"), ("trace", "b/j", "--format", "atif")):
        assert json.loads(call(settings, *command)[1].decode("utf-8"))
    shown = json.loads(call(settings, "show", "b/j", "--json")[1].decode("utf-8"))
    assert shown["spec"]["issue"] == ISSUE
    events = [json.loads(line) for line in call(settings, "trace", "b/j", "--json")[1].decode("utf-8").splitlines()]
    assert any(event["body"].get("text") == ISSUE for event in events)
    row = json.loads(call(settings, "results", "b", "--json")[1].decode("utf-8"))
    assert row["patch"].encode() == PATCH
    assert ElementTree.fromstring(call(settings, "results", "b", "--format", "junit")[1]).tag == "testsuites"
    assert call(settings, "patch", "b/j")[1] == PATCH
