"""The work that both systems are given: one small repository, one defect, and a repair of its own for every job.

The repairs differ in content, so that nothing that one job has shown can stand for another, and the repository differs
from round to round, so that a round owes nothing to an earlier one. The tests are a shell script of a few milliseconds:
what is compared are the systems, not a test runner.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ISSUE = "total() adds one to every sum: `total 2 3` prints 6 instead of 5. It should print the sum of its two numbers."
FILE = "price.sh"
REPORT = "/tmp/report.xml"
TEST_COMMAND = ["/bin/sh", "tests/run.sh", REPORT]
ACCEPTANCE_COMMAND = ["/bin/sh", "acceptance/run.sh", REPORT]
FAIL_TO_PASS = ["acceptance::adds_two_numbers"]
PASS_TO_PASS = ["acceptance::prints_one_line"]
WORKSPACE = "/workspace"
MOUNTED_SOURCE = "/source"
TOOL_CALLS = 4
"""Read, patch, run the tests, finish."""

_BROKEN = "# Prices in cents.\ntotal() {\n    echo $(($1 + $2 + 1))\n}\n"

_CHECKS = """\
#!/bin/sh
# Writes a JUnit report to $1 and exits 1 when a case failed.
report=$1
. ./price.sh
cases=
failed=0
check() {
    if [ "$2" = "$3" ]; then
        cases="$cases<testcase classname=\\"SUITE\\" name=\\"$1\\"/>"
    else
        failed=$((failed + 1))
        cases="$cases<testcase classname=\\"SUITE\\" name=\\"$1\\"><failure message=\\"$2 is not $3\\"/></testcase>"
    fi
}
CASES
echo "<testsuite name=\\"SUITE\\" tests=\\"COUNT\\" failures=\\"$failed\\">$cases</testsuite>" >"$report"
echo "COUNT cases, $failed failed"
[ "$failed" = 0 ]
"""


@dataclass(frozen=True)
class Job:
    """One repair: the file's whole new content, and the line that makes it differ from every other job's."""

    key: str
    mark: str

    @property
    def repaired(self) -> str:
        return f"# Prices in cents.\n# {self.mark}\ntotal() {{\n    echo $(($1 + $2))\n}}\n"


@dataclass(frozen=True)
class Round:
    """A repository in `folder`, a batch file beside it, and the jobs to do on it."""

    name: str
    repository: Path
    batch_file: Path
    jobs: tuple[Job, ...]


def prepare_round(folder: Path, name: str, jobs: int, *, max_parallel: int | None = None) -> Round:
    """Writes the repository, the replays, the acceptance files and the batch file of one round into `folder`."""
    made = tuple(Job(key=f"job-{number:04}", mark=f"{name}: repair {number}") for number in range(jobs))
    repository = folder / "repository"
    _write_repository(repository, name)
    _write_script(folder / "acceptance" / "acceptance" / "run.sh", "acceptance", _ACCEPTANCE_CASES)
    for job in made:
        _write_lines(folder / "replays" / f"{job.key}.jsonl", decisions(job))
    batch_file = folder / "batch.yaml"
    batch_file.write_text(json.dumps(batch(name, made, max_parallel)))  # JSON is YAML too
    return Round(name=name, repository=repository, batch_file=batch_file, jobs=made)


_VISIBLE_CASES = {"adds_nothing_to_a_line": ('"$(total 2 3 | wc -l)"', "1")}
_ACCEPTANCE_CASES = {
    "adds_two_numbers": ('"$(total 2 3)"', "5"),
    "prints_one_line": ('"$(total 2 3 | wc -l)"', "1"),
}


def _write_script(path: Path, suite: str, cases: dict[str, tuple[str, str]]) -> None:
    calls = "\n".join(f"check {name} {got} {wanted}" for name, (got, wanted) in cases.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_CHECKS.replace("CASES", calls).replace("SUITE", suite).replace("COUNT", str(len(cases))))


def _write_lines(path: Path, lines: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_repository(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / FILE).write_text(_BROKEN)
    (folder / "README.md").write_text(f"Prices, as measured in {name}.\n")
    _write_script(folder / "tests" / "run.sh", "tests", _VISIBLE_CASES)
    for number in range(8):
        (folder / f"item-{number}.txt").write_text(f"item {number}\n" * 20)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "Prices")


def _git(folder: Path, *arguments: str) -> None:
    fixed = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_NAME": "bench" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "bench@localhost" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
    }
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, **fixed})


def decisions(job: Job) -> list[dict[str, object]]:
    """The replay of `job`, patchyard's form of the four tool calls."""
    old, new = _BROKEN.splitlines(keepends=True), job.repaired.splitlines(keepends=True)
    edit = {"path": FILE, "version": f"@{FILE}", "old": "".join(old[1:3]), "new": "".join(new[1:4])}
    return [
        {"tool": "read_file", "args": {"path": FILE}},
        {"tool": "apply_patch", "args": {"edits": [edit]}},
        {"tool": "run_tests", "args": {}},
        {"tool": "finish", "args": {"summary": "total() prints the sum."}},
    ]


def commands(job: Job) -> list[str]:
    """The same four actions as shell commands. The first also copies the mounted repository, so that it is writable."""
    tests = " ".join(TEST_COMMAND)
    return [
        f"cp -R {MOUNTED_SOURCE}/. . && cat {FILE}",
        f"cat >{FILE} <<'END'\n{job.repaired}END",
        f"{tests} && cat {REPORT}",
        f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; diff -u {MOUNTED_SOURCE}/{FILE} {FILE}; true",
    ]


def batch(name: str, jobs: tuple[Job, ...], max_parallel: int | None) -> dict[str, object]:
    """The batch file's content; paths are relative to its folder."""
    stated: dict[str, object] = {"name": name}
    if max_parallel is not None:
        stated["max_parallel"] = max_parallel
    defaults = {
        "image": "sandbox-python",
        "model": "replay:replays/{id}.jsonl",
        "repo": "repository",
        "base": "HEAD",
        "issue": ISSUE,
        "tests": {"command": TEST_COMMAND, "report": REPORT, "timeout_seconds": 30},
        "protected": ["tests/**"],
        "acceptance": {
            "files": "acceptance",
            "command": ACCEPTANCE_COMMAND,
            "report": REPORT,
            "fail_to_pass": FAIL_TO_PASS,
            "pass_to_pass": PASS_TO_PASS,
        },
    }
    return {**stated, "defaults": defaults, "jobs": [{"id": job.key} for job in jobs]}
