"""Submission: all or nothing, and the same twice is once. Mistakes are in `test_submit_mistakes`."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile

from ledger.objects import get_object
from ledger.reads import find_job, list_jobs
from tests.integration.cli.conftest import BATCH, HEAD, git, rows


def test_a_batch_is_submitted_with_everything_that_a_worker_needs(ledger, patchyard, place):
    done = patchyard("submit", "batch.yaml")
    assert (done.status, done.err) == (0, "")
    assert done.out == "batch fixes submitted: id 1, 1 job\n"
    job = find_job(ledger, "fixes/one")
    assert job.spec.base_commit == git(place / "repo", "rev-parse", "HEAD")
    assert job.spec.base_tree == git(place / "repo", "rev-parse", "HEAD^{tree}")
    assert job.spec.image == "sha256:" + "a" * 64
    assert get_object(ledger, job.spec.replay_sha256) == b'{"final": "done"}\n'
    assert (place / "home" / "mirrors").is_dir()


def test_the_same_file_again_is_the_same_batch(ledger, patchyard):
    first = patchyard("submit", "batch.yaml", "--json").json
    before = rows(ledger)
    again = patchyard("submit", "batch.yaml", "--json").json
    assert (first["created"], again["created"]) == (True, False)
    assert first["batch_id"] == again["batch_id"]
    assert rows(ledger) == before
    said = patchyard("submit", "batch.yaml")
    assert said.out == "batch fixes was submitted before and is the same: id 1, 1 job\n"


def test_changed_jobs_under_the_same_name_are_refused_with_what_changed(ledger, patchyard, place):
    patchyard("submit", "batch.yaml")
    before = rows(ledger)
    (place / "batch.yaml").write_text(BATCH.replace("subtract", "divide"))
    refused = patchyard("submit", "batch.yaml")
    assert refused.status == 2
    assert "batch fixes was submitted before and differs: job one changed: issue" in refused.err
    assert 'It adds where it should divide."' in refused.err
    assert len(refused.err.splitlines()) == 1
    assert rows(ledger) == before
    (place / "batch.yaml").write_text(BATCH + "    budget: {steps: 20}\n")
    assert "job one changed: budget.steps 40 → 20; submit the changed" in patchyard("submit", "batch.yaml").err
    other = patchyard("submit", "batch.yaml", "--name", "fixes-2")
    assert (other.status, other.out) == (0, "batch fixes-2 submitted: id 3, 1 job\n".replace("3", str(_id(ledger))))


def _id(ledger) -> int:
    return find_job(ledger, "fixes-2/one").batch_id


def test_overrides_and_placeholders(ledger, patchyard, place):
    (place / "replays" / "fixes-one.jsonl").write_text('{"final": "other"}\n')
    sets = ["--set", "defaults.budget.steps=3", "--set", "defaults.model=replay:replays/{batch}-{id}.jsonl"]
    assert patchyard("submit", "batch.yaml", *sets).status == 0
    spec = find_job(ledger, "fixes/one").spec
    assert spec.budget.steps == 3
    assert spec.model == "replay:replays/fixes-one.jsonl"
    assert get_object(ledger, spec.replay_sha256) == b'{"final": "other"}\n'


def test_paths_start_at_the_batch_file(ledger, patchyard, place, monkeypatch):
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert patchyard("submit", "../batch.yaml").status == 0
    assert find_job(ledger, "fixes/one").spec.source.location == str(place / "repo")


def test_acceptance_files_travel_and_take_the_rest_from_the_tests(ledger, patchyard, place):
    (place / "hidden" / "one" / "tests").mkdir(parents=True)
    (place / "hidden" / "one" / "tests" / "test_hidden.py").write_text("def test_x(): pass\n")
    acceptance = "    acceptance: {files: 'hidden/{id}', fail_to_pass: [tests/test_hidden.py::test_x]}\n"
    (place / "batch.yaml").write_text(BATCH + acceptance)
    assert patchyard("submit", "batch.yaml").status == 0
    spec = find_job(ledger, "fixes/one").spec
    assert spec.acceptance.command == spec.tests.command
    (place / "a.tar").write_bytes(get_object(ledger, spec.acceptance.files_sha256))
    with tarfile.open(place / "a.tar") as tar:
        assert tar.getnames() == ["tests/test_hidden.py"]


def test_a_plain_folder_is_a_repository_whose_later_changes_change_nothing(ledger, patchyard, place):
    (place / "plain").mkdir()
    (place / "plain" / "a.py").write_text("1\n")
    (place / "batch.yaml").write_text(BATCH.replace("repo: repo", "repo: plain"))
    assert patchyard("submit", "batch.yaml").status == 0
    spec = find_job(ledger, "fixes/one").spec
    assert spec.source.kind == "folder"
    assert get_object(ledger, spec.source.pack_sha256).startswith(b"PACK")


def test_a_network_is_what_the_ceiling_permits_in_its_canonical_form(ledger, patchyard, place, monkeypatch):
    network = "    network: {allow: ['Cdn.test.:443', '*.Files.example.org:443', 'cdn.test:443'], verify: true}\n"
    (place / "batch.yaml").write_text(BATCH + network)
    monkeypatch.setenv("PATCHYARD_NETWORK_ALLOW", "cdn.test:443, *.example.org:443")
    assert patchyard("submit", "batch.yaml").status == 0
    spec = find_job(ledger, "fixes/one").spec
    assert spec.network.plain() == {"allow": ["cdn.test:443", "*.files.example.org:443"], "verify": True}
    monkeypatch.setenv("PATCHYARD_NETWORK_ALLOW", "*.example.org:443")
    refused = patchyard("submit", "batch.yaml", "--name", "again")
    assert refused.status == 2
    assert refused.err.splitlines() == [
        f"patchyard: batch.yaml:10: network.allow '{text}': it is beyond what jobs may ask for here; remove it, or "
        "have PATCHYARD_NETWORK_ALLOW permit it"
        for text in ("Cdn.test.:443", "cdn.test:443")
    ]


def test_what_a_job_may_reach_cannot_be_changed_later(ledger, patchyard, place, monkeypatch):
    monkeypatch.setenv("PATCHYARD_NETWORK_ALLOW", "cdn.test:443 example.org:443")
    (place / "batch.yaml").write_text(BATCH + "    network: {allow: ['cdn.test:443']}\n")
    assert patchyard("submit", "batch.yaml").status == 0
    (place / "batch.yaml").write_text(BATCH + "    network: {allow: ['cdn.test:443', 'example.org:443']}\n")
    refused = patchyard("submit", "batch.yaml")
    assert refused.status == 2
    assert "batch fixes was submitted before and differs: job one changed: network" in refused.err
    assert find_job(ledger, "fixes/one").spec.network.allow == ("cdn.test:443",)


def test_a_job_may_do_without_the_network_of_the_defaults(ledger, patchyard, place, monkeypatch):
    monkeypatch.setenv("PATCHYARD_NETWORK_ALLOW", "cdn.test:443")
    text = BATCH.replace("jobs:", "  network: {allow: ['cdn.test:443']}\njobs:") + "    network: null\n"
    (place / "batch.yaml").write_text(text)
    assert patchyard("submit", "batch.yaml").status == 0
    assert find_job(ledger, "fixes/one").spec.network is None


def test_changes_that_are_not_committed_are_told_and_are_no_part_of_the_base(ledger, patchyard, place):
    (place / "repo" / ".gitignore").write_text("*.pyc\n")
    git(place / "repo", "add", ".gitignore")
    git(place / "repo", "commit", "-qm", "ignore")
    (place / "repo" / "cache.pyc").write_text("")
    assert patchyard("submit", "batch.yaml", "--name", "clean").err == ""
    (place / "repo" / "calc.py").write_text("def sub(a, b):\n    return a - b\n")
    (place / "repo" / "new\x1b.py").write_text("")
    jobs = BATCH + "  - {id: two, repo: repo, issue: x, model: 'replay:replays/one.jsonl'}\n"
    (place / "batch.yaml").write_text(jobs)
    done = patchyard("submit", "batch.yaml")
    assert done.err == (
        "note: repo: what is not committed is no part of the base: calc.py, new\\x1b.py; commit it, if it should be\n"
    )
    assert find_job(ledger, "fixes/one").spec.base_commit == git(place / "repo", "rev-parse", "HEAD")
    older = BATCH + "    base: HEAD~1\n"
    (place / "batch.yaml").write_text(older)
    assert patchyard("submit", "batch.yaml", "--name", "older").err == "", "nobody could mean them"
    (place / "batch.yaml").write_text(BATCH)
    for number in range(9):
        (place / "repo" / f"{number}.py").write_text("")
    assert ": 0.py, 1.py, 2.py, 3.py, 4.py and 6 more;" in patchyard("submit", "batch.yaml", "--name", "many").err


def test_a_repository_runs_nothing_when_its_changes_are_looked_for(patchyard, place):
    mark = place / "mark"
    repo = place / "repo"
    (repo / ".gitattributes").write_text("*.py filter=evil\n")
    for name, value in (("filter.evil.clean", f"touch {mark}; cat"), ("core.fsmonitor", f"touch {mark}; false")):
        git(repo, "config", name, value)
    (repo / "calc.py").write_text("def sub(a, b):\n    return b + a\n")
    assert "note: repo: what is not committed" in patchyard("submit", "batch.yaml").err
    assert not mark.exists()


def test_a_database_that_does_not_answer_is_one_line_after_the_checks(patchyard, place, monkeypatch):
    monkeypatch.setenv("PATCHYARD_DATABASE_URL", "postgresql://nobody:s3cret@127.0.0.1:1/none")
    for argv in (("submit", "batch.yaml"), ("list",), ("show", "b/j")):
        refused = patchyard(*argv)
        assert refused.status == 3
        assert "@127.0.0.1:1/none: the database does not answer; start it, or correct PATCHYARD_DATA" in refused.err
        assert "s3cret" not in refused.err
        assert len(refused.err.splitlines()) == 1


def test_without_a_stack_the_command_says_how_to_start_one(patchyard, monkeypatch):
    monkeypatch.delenv("PATCHYARD_DATABASE_URL")
    refused = patchyard("status")
    assert refused.status == 3
    assert refused.err.endswith("start it with `patchyard up`\n")
    assert len(refused.err.splitlines()) == 1


MEASURE = """
import resource, sys
from patchyard.cli import run
status = run(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def submitted_bytes(place, jobs: int) -> int:
    """Submits that many jobs from a JSON-lines file in a process of its own, and gives its peak memory in bytes."""
    with (place / "many.jsonl").open("w") as file:
        for number in range(jobs):
            job = {"id": f"j{number}", "repo": "repo", "issue": "Something is wrong. " * 100}
            file.write(json.dumps(job) + "\n")
    (place / "many.yaml").write_text(
        HEAD.replace("{id}", "one").replace("name: fixes", f"name: many-{jobs}") + "jobs: many.jsonl\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, "submit", "many.yaml"], cwd=place, capture_output=True, text=True, check=True
    )
    assert f"batch many-{jobs} submitted" in done.stdout
    status, kilobytes = done.stderr.splitlines()[-1].split()
    assert status == "0"
    return int(kilobytes) * 1024


def test_ten_thousand_jobs_take_the_memory_of_a_hundred(ledger, place):
    few, many = submitted_bytes(place, 100), submitted_bytes(place, 10_000)
    assert many - few < 16 * 1024 * 1024
    assert len(list_jobs(ledger, find_job(ledger, "many-10000/j9999").batch_id, limit=20_000)) == 10_000
