"""Mistakes of a batch file: each is one line with its place and what to do, and nothing is written."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from ledger.reads import find_job
from tests.integration.cli.conftest import HEAD, ONE, rows

BAD = {
    "unknown field": (HEAD + ONE + "    isue: y\n", "batch.yaml:10: unknown field isue; did you mean 'issue'?"),
    "unknown field below": (
        HEAD + ONE + "    budget:\n      step: 5\n",
        "batch.yaml:11: unknown field budget.step; did you mean 'steps'?",
    ),
    "field of the batch": (
        HEAD + ONE + "    weight: 5\n",
        "batch.yaml:10: unknown field weight; that is a field of the",
    ),
    "duplicate id": (
        HEAD + ONE + "  - {id: one, repo: repo, issue: y}\n",
        "batch.yaml:10: job id 'one' is taken by batch.yaml:7; give each job an id of its own",
    ),
    "id out of pattern": (HEAD + ONE.replace("one", "a/b"), "batch.yaml:7: id is 'a/b'; use 1 to 100 letters"),
    "id too long": (HEAD + ONE.replace("one", "a" * 101), "batch.yaml:7: id is 'aaa"),
    "id missing": (HEAD + "jobs:\n  - {repo: repo, issue: x}\n", "batch.yaml:7: id is missing; add it to the job"),
    "issue missing": (
        HEAD + "jobs:\n  - id: one\n    repo: repo\n",
        "batch.yaml:7: issue is missing; add it to the job",
    ),
    "issue empty": (HEAD + ONE.replace("issue: x", 'issue: ""'), "batch.yaml:9: issue is empty; write at least one"),
    "repository missing": (HEAD + ONE.replace("repo: repo", "repo: none"), "batch.yaml:8: "),
    "commit missing": (HEAD + ONE + f"    base: {'0' * 39}1\n", "batch.yaml:10: "),
    "base is a number": (
        HEAD + ONE + "    base: 1234567\n",
        "batch.yaml:10: base must be text, not the number 1234567; put",
    ),
    "archive without digest": (HEAD + ONE.replace("repo: repo", "repo: a.tar.gz"), "batch.yaml:8: "),
    "archive with a wrong digest": (
        HEAD + ONE.replace("repo: repo", f"repo: 'a.tar.gz#sha256={'0' * 64}'"),
        "batch.yaml:8: ",
    ),
    "bare tag": (
        HEAD.replace("image: sandbox-python", "image: python:3.11") + ONE,
        "batch.yaml:3: image: python:3.11 is not",
    ),
    "image not locked": (
        HEAD.replace("image: sandbox-python", "image: other") + ONE,
        "batch.yaml:3: image: other is not pin",
    ),
    "replay missing": (
        HEAD + ONE + "    model: replay:replays/no.jsonl\n",
        "batch.yaml:10: replay 'replays/no.jsonl': no such",
    ),
    "replay malformed": (HEAD + ONE + "    model: replay:bad.jsonl\n", "bad.jsonl, line 2: not JSON"),
    "model of later": (
        HEAD + ONE + "    model: openai:gpt\n",
        "batch.yaml:10: the model 'openai:gpt' is not available in",
    ),
    "model unknown": (HEAD + ONE + "    model: gpt\n", "batch.yaml:10: unknown model 'gpt'; use replay:PATH"),
    "placeholder unknown": (
        HEAD + ONE + "    model: 'replay:{name}.jsonl'\n",
        "batch.yaml:10: model has the placeholder '{name}'; known are {id}, {batch}",
    ),
    "dots in acceptance": (
        HEAD + ONE + "    acceptance:\n      files: ../x\n      fail_to_pass: [a]\n",
        "batch.yaml:11: acceptance.files '../x' has '..' in it; keep them below",
    ),
    "acceptance files missing": (
        HEAD + ONE + "    acceptance:\n      files: nowhere\n      fail_to_pass: [a]\n",
        "batch.yaml:11: ",
    ),
    "acceptance names nothing": (
        HEAD + ONE + "    acceptance: {fail_to_pass: []}\n",
        "batch.yaml:10: acceptance.fail_to_pass is empty; name at least one",
    ),
    "one test in both lists": (
        HEAD + ONE + "    acceptance: {fail_to_pass: [a], pass_to_pass: [a]}\n",
        "batch.yaml:10: 'a' is in fail_to_pass and in pass_to_pass",
    ),
    "nothing verifies": (
        HEAD + ONE + "    tests:\n",
        "batch.yaml:7: neither tests nor acceptance is given: nothing could",
    ),
    "report not absolute": (
        HEAD.replace("[python3, -m, pytest, --junitxml=/tmp/report.xml]}", "[a], report: report.xml}") + ONE,
        "batch.yaml:5: tests.report 'report.xml' is not an absolute path of a file; write it as /tmp/report.xml",
    ),
    "command no list": (
        HEAD + ONE + "    tests: {command: pytest}\n",
        "batch.yaml:10: tests.command must be a list, not 'py",
    ),
    "budget negative": (
        HEAD + ONE + "    budget: {steps: -1}\n",
        "batch.yaml:10: budget.steps is '-1'; it must be at least 0",
    ),
    "budget no number": (HEAD + ONE + "    budget: {cost_usd: .nan}\n", "batch.yaml:10: budget.cost_usd is 'nan'; "),
    "wall clock of nothing": (
        HEAD + ONE + "    budget: {wall_seconds: 0}\n",
        "batch.yaml:10: budget.wall_seconds is '0'; it must be more than 0",
    ),
    "limit out of bounds": (
        HEAD + ONE + "    limits: {pids: 1}\n",
        "batch.yaml:10: limits.pids: 1 is out of bounds; give",
    ),
    "network where there is none": (
        HEAD + ONE + "    network: {allow: ['cdn.test:443']}\n",
        "batch.yaml:10: network.allow 'cdn.test:443': jobs have no network here; remove it, or have PATCHYARD_NETWORK_",
    ),
    "network without a port": (
        HEAD + ONE + "    network:\n      allow:\n        - cdn.test\n",
        "batch.yaml:12: network.allow 'cdn.test': it has no port; write it as cdn.test:443, *.example.org:443 or",
    ),
    "network to the metadata address": (
        HEAD + ONE + "    network: {allow: ['0xa9fea9fe:80']}\n",
        "batch.yaml:10: network.allow '0xa9fea9fe:80': its address is not public (metadata); remove it; no setting",
    ),
    "network of nothing": (
        HEAD + ONE + "    network: {allow: []}\n",
        "batch.yaml:10: network.allow is empty; name at least one",
    ),
    "network no list": (
        HEAD + ONE + "    network: {allow: 'cdn.test:443'}\n",
        "batch.yaml:10: network.allow must be a list, not 'cdn.test:443'",
    ),
    "network with an unknown field": (
        HEAD + ONE + "    network: {allow: [a], deny: [b]}\n",
        "batch.yaml:10: unknown field network.deny; known names are allow, verify",
    ),
    "network in the defaults": (
        HEAD + "  network: {allow: ['cdn.test:443']}\n" + ONE,
        "batch.yaml:6: network.allow 'cdn.test:443': jobs have no network here",
    ),
    "pattern that leads out": (HEAD + ONE + "    protected: ['../x']\n", "batch.yaml:10: the pattern '../x': it means"),
    "pattern too slow": (
        HEAD + ONE + "    writable: ['a*b*c*d*e*']\n",
        "batch.yaml:10: the pattern 'a*b*c*d*e*': more than",
    ),
    "request at an unknown forge": (
        HEAD + ONE + "    publish: {to: pull_request}\n",
        "batch.yaml:10: what kind of forge is at ",
    ),
    "branch with a name that git refuses": (
        HEAD + ONE + "    publish: {to: branch, branch: 'a..b'}\n",
        "batch.yaml:10: 'a..b' is no name of a branch; for example patchyard/{batch}/{job}-{key}",
    ),
    "publication with an unknown field": (
        HEAD + ONE + "    publish: {to: branch, force: true}\n",
        "batch.yaml:10: unknown field publish.force; did you mean 'forge'?",
    ),
    "publication unknown": (
        HEAD + ONE + "    publish: {to: moon}\n",
        "batch.yaml:10: publish.to is 'moon'; it must be 'patch', 'branch' or 'pull_request'",
    ),
    "strategy of later": (
        HEAD + ONE + "    strategy: {best_of: 3}\n",
        "batch.yaml:10: strategy 'best_of' is not available in this version; write single",
    ),
    "approvals of later": (
        HEAD + ONE + "    approvals: ask\n",
        "batch.yaml:10: approvals 'ask' is not available in this version; write deny or allow",
    ),
    "approvals unknown": (
        HEAD + ONE + "    approvals: yes\n",
        "batch.yaml:10: approvals is 'yes'; it must be 'deny', 'ask'",
    ),
    "priority too high": (
        HEAD + ONE + "    priority: 101\n",
        "batch.yaml:10: priority is '101'; it must be at most 100",
    ),
    "repos of a job of ours": (
        HEAD + "jobs:\n  - id: one\n    repos: x/{repo}\n    issue: x\n",
        "batch.yaml:8: repos is for instances of SWE-bench and SWE-agent alone; say with repo where this job's code is",
    ),
    "repos beside repo": (HEAD + ONE + "    repos: x/{repo}\n", "batch.yaml:10: repos is for instances of SWE"),
    "repos of nobody": (
        HEAD + "  repos: x/{repo}\n" + ONE,
        "batch.yaml:6: repos is for instances of SWE-bench and SWE-agent alone, and no job here is one; remove it",
    ),
    "repos as the nearest name": (
        HEAD + ONE + "    repoes: x\n",
        "batch.yaml:10: unknown field repoes; did you mean 'repo'?",
    ),
    "no jobs": (HEAD + "jobs: []\n", "batch.yaml:6: there are no jobs; list at least one job under jobs"),
    "a NUL character": (HEAD + ONE.replace("issue: x", 'issue: "a\\0b"'), "batch.yaml:7: a text of the job has a NUL"),
    "not YAML": (HEAD + "jobs: [\n", "batch.yaml:6: not well-formed YAML"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(ledger, patchyard, place, name):
    text, said = BAD[name]
    (place / "bad.jsonl").write_text('{"final": "x"}\n{"final":\n')
    with tarfile.open(place / "a.tar.gz", "w:gz") as tar:
        tar.add(place / "repo" / "calc.py", "calc.py")
    (place / "batch.yaml").write_text(text)
    refused = patchyard("submit", "batch.yaml")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("patchyard: " + said)
    assert len(refused.err.splitlines()) == 1
    assert "; " in refused.err
    assert set(rows(ledger).values()) == {0}


def test_the_page_about_the_batch_file_shows_mistakes_as_they_are_told(patchyard, place):
    page = (Path(__file__).parents[3] / "docs/batch-file.md").read_text()
    shown = page.split("## What is wrong with a file")[1].split("```")[1].split("\n")[1:-1]
    told = set()
    for text in (text for text, said in BAD.values() if any(line.startswith(said) for line in shown)):
        (place / "batch.yaml").write_text(text)
        told.add(patchyard("submit", "batch.yaml").err.removeprefix("patchyard: ").rstrip())
    assert set(shown) <= told


def test_the_right_digest_of_an_archive_is_taken(ledger, patchyard, place):
    with tarfile.open(place / "a.tar.gz", "w:gz") as tar:
        tar.add(place / "repo" / "calc.py", "calc.py")
    digest = hashlib.sha256((place / "a.tar.gz").read_bytes()).hexdigest()
    (place / "batch.yaml").write_text(HEAD + ONE.replace("repo: repo", f"repo: 'a.tar.gz#sha256={digest}'"))
    assert patchyard("submit", "batch.yaml").status == 0
    assert find_job(ledger, "fixes/one").spec.source.kind == "archive"


def test_all_mistakes_of_a_batch_are_told_at_once(ledger, patchyard, place):
    text = HEAD + "jobs:\n" + "".join(f"  - {{id: j{n}, repo: none{n}, issue: x, model: gpt}}\n" for n in range(30))
    (place / "batch.yaml").write_text(text)
    refused = patchyard("submit", "batch.yaml")
    lines = refused.err.splitlines()
    assert refused.status == 2
    assert len(lines) == 21
    assert all(line.startswith("patchyard: batch.yaml:") for line in lines[:-1])
    assert lines[-1] == "patchyard: only the first 20 mistakes are shown; mend them and try again"
    assert set(rows(ledger).values()) == {0}


def test_a_mistake_in_the_defaults_is_told_once_and_not_by_every_job(patchyard, place):
    jobs = "".join(f"  - {{id: j{n}, repo: repo, issue: x}}\n" for n in range(5))
    (place / "batch.yaml").write_text(HEAD.replace("sandbox-python", "python:3.11") + "jobs:\n" + jobs)
    refused = patchyard("submit", "batch.yaml")
    assert [line for line in refused.err.splitlines() if "python:3.11 is not pinned" in line] == [
        line for line in refused.err.splitlines() if "batch.yaml:3: " in line
    ]
    assert refused.err.count("batch.yaml:3: ") == 1


def test_jobs_of_a_json_lines_file_have_its_lines(ledger, patchyard, place):
    jobs = [{"id": "one", "repo": "repo", "issue": "x"}, {"id": "one", "repo": "repo", "issue": "y"}]
    (place / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    (place / "batch.yaml").write_text(HEAD + "jobs: jobs.jsonl\n")
    refused = patchyard("submit", "batch.yaml")
    assert refused.err == (
        "patchyard: jobs.jsonl:2: job id 'one' is taken by jobs.jsonl:1; give each job an id of its own\n"
    )
    assert set(rows(ledger).values()) == {0}
