"""Jobs of several shapes on a tiny repository, and how each of them has to end.

A shape's edits, commands and tests are deterministic, so its final tree and its patch are the same in every run. Test
runs are evidence that jobs share by content; a number in each job's time limit keeps them apart, so that every job
runs its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.batches import submission
from ledger.connect import Database
from ledger.records.job import BatchSpec, JobSpec
from ledger.records.source import SourceRef
from runners.workspace.overlay import overlay_tar

Line = dict[str, Any]

# Each writes a JUnit report: that calc.txt still has its second line, and that its first was translated.
_REPORT = """\
check() {{
  if grep -q "$2" "$3" 2>/dev/null
  then cases="$cases<testcase classname=\\"calc\\" name=\\"$1\\"/>"
  else cases="$cases<testcase classname=\\"calc\\" name=\\"$1\\"><failure message=\\"no $2\\"/></testcase>"; bad=1
  fi
}}
bad=0
{checks}
printf '<testsuites><testsuite name="calc">%s</testsuite></testsuites>' "$cases" >/tmp/report.xml
exit $bad
"""
FILES = {
    "calc.txt": "one\ntwo\nthree\n",
    "check.sh": _REPORT.format(checks="check second '^two$' calc.txt"),
    "README": "calc\n",
}
ACCEPTANCE = {"accept.sh": _REPORT.format(checks="check first '^eins$' calc.txt\ncheck third '^three$' calc.txt")}

USAGE = {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.001}


def edit(old: str, new: str, path: str = "calc.txt") -> Line:
    """A turn that replaces text."""
    edits = [{"path": path, "version": f"@{path}", "old": old, "new": new}]
    return {"tool": "apply_patch", "args": {"edits": edits}, "usage": USAGE}


def shell(command: str) -> Line:
    """A turn that runs a command."""
    return {"tool": "run_shell", "args": {"command": command}, "usage": USAGE}


def think(latency_ms: int = 60) -> Line:
    """A turn that only costs."""
    return {"plan": "think", "latency_ms": latency_ms, "usage": USAGE}


_RUN_TESTS: Line = {"tool": "run_tests", "usage": USAGE}
_FINAL: Line = {"final": "done", "usage": USAGE}


@dataclass(frozen=True)
class Shape:
    """A kind of job: the model's lines, the reason that it ends with, where it goes, and what it says beyond that."""

    name: str
    lines: tuple[Line, ...]
    reason: str = "verified"
    acceptance: bool = False
    to: str = "patch"
    fields: dict[str, Any] = field(default_factory=dict)


_ADD_LOG = "sleep 0.2; echo said >log.txt; wc -l <calc.txt >count.txt"
FIX = Shape(
    "fix",
    (think(), edit("one", "eins"), shell(_ADD_LOG), _RUN_TESTS, _FINAL),
    acceptance=True,
)
SHELL = Shape("shell", (shell(_ADD_LOG), shell("sleep 0.2; echo four >>calc.txt; rm README"), _FINAL))
QUICK = Shape("quick", (edit("one", "uno"), _FINAL))
UNLUCKY = Shape(
    "unlucky",
    ({"error": "timeout", "usage": USAGE}, {"error": "rate_limited", "usage": USAGE}, edit("three", "tre"), _FINAL),
)
BROKEN = Shape("broken", (edit("two", "zwei"), _RUN_TESTS, _FINAL), "verification_failed")
WRONG = Shape("wrong", (edit("one", "jeden"), _FINAL), "acceptance_failed", acceptance=True)
POOR = Shape("poor", tuple(think() for _ in range(4)), "budget:steps", fields={"budget": {"steps": 2}})
TALKER = Shape("talker", (think(300), think(300), think(300)), "replay_exhausted")
CHEAT = Shape("cheat", (edit("two", "2", "check.sh"), _FINAL), "empty_patch")
PATIENT = Shape("patient", (think(2_500), shell("sleep 1.5; echo late >late.txt"), _FINAL))
BRANCH = Shape("branch", (edit("three", "drei"), _FINAL), to="branch")
REQUEST = Shape("request", (edit("three", "trzy"), _FINAL), to="pull_request")
SHAPES = (FIX, SHELL, QUICK, UNLUCKY, BROKEN, WRONG, POOR, TALKER, CHEAT, PATIENT, BRANCH, REQUEST)


@dataclass(frozen=True)
class Repository:
    """A git repository with one commit."""

    path: Path
    commit: str
    tree: str
    acceptance: bytes

    @classmethod
    def made_in(cls, folder: Path) -> Repository:
        path, hidden = folder / "repository", folder / "acceptance"
        for place, files in ((path, FILES), (hidden, ACCEPTANCE)):
            place.mkdir(parents=True)
            for name, text in files.items():
                (place / name).write_text(text)
        git(path, "init", "-q", "-b", "main")
        git(path, "add", "-A")
        git(path, "commit", "-q", "-m", "start")
        tree = git(path, "rev-parse", "HEAD^{tree}")
        return cls(path, git(path, "rev-parse", "HEAD"), tree, overlay_tar(hidden))


def git(folder: Path, *arguments: str) -> str:
    """Runs git with no configuration but the author's."""
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder), **names}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass
class Submitter:
    """Submits batches of shapes; remembers which shape each job has. `publish` says where (shape, batch, job) goes."""

    db: Database
    repository: Repository
    image: str
    publish: Callable[[Shape, str, str], dict[str, Any]]
    shape_of: dict[str, Shape] = field(default_factory=dict)
    batches: int = 0

    def submit(self, *shapes: Shape, max_parallel: int | None = None) -> list[str]:
        """One batch with a job for each shape; the jobs' references."""
        self.batches += 1
        name = f"chaos-{self.batches}"
        refs = []
        with submission(self.db) as opened:
            hidden = opened.put_object("acceptance", self.repository.acceptance)
            for number, shape in enumerate(shapes):
                data = "".join(json.dumps(line) + "\n" for line in shape.lines).encode()
                replay = opened.put_object("replay", data)
                serial = len(self.shape_of) + 1
                key = f"{shape.name}-{number}"
                spec = self._job(shape, key, serial, replay, hidden)
                opened.add(JobSpec.model_validate(spec | {"publish": self.publish(shape, name, key)}))
                refs.append(f"{name}/{key}")
                self.shape_of[refs[-1]] = shape
            opened.finish(BatchSpec(name=name, max_parallel=max_parallel))
        return refs

    def _job(self, shape: Shape, key: str, serial: int, replay: str, hidden: str) -> dict[str, Any]:
        seconds = 60 + serial / 1000
        values: dict[str, Any] = {
            "key": key,
            "source": SourceRef(kind="git", location=str(self.repository.path)),
            "base_commit": self.repository.commit,
            "base_tree": self.repository.tree,
            "issue": "The first line is English.",
            "image": self.image,
            "image_name": "sandbox-python",
            "model": "replay:replay.jsonl",
            "replay_sha256": replay,
            "tests": {"command": ["sh", "check.sh"], "timeout_seconds": seconds},
            "protected": ["check.sh"],
            "budget": {"sandbox_seconds": 3_000, "wall_seconds": 3_000, "input_tokens": 100_000},
        }
        if shape.acceptance:
            values["acceptance"] = {
                "files_sha256": hidden,
                "command": ["sh", "accept.sh"],
                "timeout_seconds": seconds,
                "fail_to_pass": ["calc::first"],
                "pass_to_pass": ["calc::third"],
            }
        budget = values["budget"] | shape.fields.get("budget", {})
        return values | shape.fields | {"budget": budget}
