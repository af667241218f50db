"""A real repository, a real ledger and real mirrors, and a model played by the test: one call after another."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from images.oci_layout import Layout
from ledger.batches import submission
from ledger.connect import Database
from ledger.dispatch import admit_jobs
from ledger.objects import get_object, packs_of
from ledger.reads import JobRow, find_job, job_agents
from ledger.records.job import BatchSpec, JobSpec, Tests
from ledger.records.source import SourceRef
from ledger.records.step import Claim, Completion, NextStep, Offer
from ledger.records.tool import ToolCall, ToolResult
from ledger.steps import claim_step, complete_step
from runners.act import act
from runners.publish import publish
from runners.registry import LedgerRegistry
from runners.runner import Runner
from runners.sandbox.docker import DockerBackend
from runners.sandbox.oci import OciBackend
from runners.spending import estimate
from runners.verify import verify
from runners.workspace.pack import add_pack
from runners.workspace.source import Mirrors
from runners.workspace.store import Store

FILES = {
    "calc/__init__.py": "",
    "calc/sums.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n",
    "tests/test_sums.py": "from calc.sums import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
    "README.md": "calc\n",
    ".gitignore": "build/\n",
}
NO_IMAGE = "sha256:" + "a" * 64
PYTEST = ("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=/tmp/report.xml")
WORK = {"act": act, "verify": verify, "publish": publish}


def git(folder: Path, *arguments: str) -> str:
    """Runs git with no configuration but the author's."""
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder), **names}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass(frozen=True)
class Repository:
    """A git repository with one commit."""

    path: Path
    commit: str
    tree: str


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folder = tmp_path / "repo"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return Repository(folder, git(folder, "rev-parse", "HEAD"), git(folder, "rev-parse", "HEAD^{tree}"))


@dataclass
class Played:
    """One job whose model is the test."""

    database: Database
    runner: Runner
    offer: Offer
    job_id: int
    completions: list[Completion] = field(default_factory=list)

    def try_claim(self) -> Claim | None:
        """The claim of the step that is next, if it is to be had."""
        return claim_step(self.database, self.offer.step_id, owner="worker", lease_seconds=60, estimate=estimate)

    def claim(self) -> Claim:
        """The claim of the step that is next."""
        claim = self.try_claim()
        assert claim is not None
        return claim

    def decide(self, name: str, arguments: dict[str, Any]) -> Offer:
        """The model's turn: it calls a tool."""
        claim = self.claim()
        assert claim.kind == "decide"
        call = ToolCall(call_id=f"call_{claim.seq}", name=name, arguments=arguments)
        self._next(
            complete_step(self.database, claim, Completion(result={}, next=NextStep(kind="act", input=call.plain())))
        )
        return self.offer

    def final(self) -> None:
        """The model says that it is done."""
        claim = self.claim()
        follows = NextStep(kind="verify", input={"on": "head"})
        self._next(complete_step(self.database, claim, Completion(result={}, next=follows, job_state="verifying")))

    def work(self, claim: Claim | None = None) -> Completion:
        """One step of the runners', claimed, done and completed."""
        claim = claim or self.claim()
        completion = WORK[claim.kind](claim, self.runner)
        self.completions.append(completion)
        self._next(complete_step(self.database, claim, completion))
        return completion

    def call(self, name: str, **arguments: Any) -> ToolResult:
        """A call of the model's and what it observes."""
        self.decide(name, arguments)
        result = self.work().result
        assert "call_id" in result, f"the step ended otherwise: {result}"
        return ToolResult.model_validate(result)

    def refused(self, name: str, **arguments: Any) -> str:
        """The code of a call that fails."""
        result = self.call(name, **arguments)
        assert not result.ok
        assert result.error is not None
        return result.error.code

    def job(self) -> JobRow:
        return find_job(self.database, str(self.job_id))

    def store(self) -> Store:
        """The mirror with all that the ledger has of the agent's trees."""
        spec = self.job().spec
        store = self.runner.mirrors.open(spec.source, spec.base_commit, lambda sha: get_object(self.database, sha))
        for sha256 in packs_of(self.database, job_agents(self.database, self.job_id)[0].id):
            add_pack(store, get_object(self.database, sha256))
        return store

    def content(self, path: str) -> bytes | None:
        """The file at `path` of the agent's head tree."""
        store = self.store()
        entry = store.entry(self.job().head_tree, path)
        return store.blob(entry.id) if entry else None

    def _next(self, offer: Offer | None) -> None:
        if offer is not None:
            self.offer = offer


Play = Callable[..., Played]


@pytest.fixture
def no_engine(database: Database) -> Iterator[DockerBackend]:
    """The Docker backend for an engine that does not answer: nobody listens on port 1."""
    backend = DockerBackend("tcp://127.0.0.1:1", LedgerRegistry(database, "local"))
    yield backend
    backend.close()


@pytest.fixture
def runner(database: Database, tmp_path: Path, no_engine: DockerBackend) -> Runner:
    """A runner without an engine."""
    return Runner(db=database, mirrors=Mirrors(tmp_path / "home"), backend=no_engine)


@pytest.fixture
def engine_runner(database: Database, tmp_path: Path, make_backend: Callable[..., DockerBackend]) -> Runner:
    """A runner with the session's engine."""
    return Runner(
        db=database,
        mirrors=Mirrors(tmp_path / "home"),
        backend=make_backend(registry=LedgerRegistry(database, "local")),
    )


@pytest.fixture
def oci_runner(database: Database, tmp_path: Path, oci_home: Path, sandbox_layout: Layout) -> Iterator[Runner]:
    """A runner without an engine, for sandboxes of crun's."""
    if shutil.which("crun") is None:
        pytest.skip("crun is not installed")
    backend = OciBackend(oci_home, LedgerRegistry(database, "local"), runtime="crun")
    assert backend.has_image(sandbox_layout.manifest_digest)
    yield Runner(db=database, mirrors=Mirrors(tmp_path / "home"), backend=backend)
    backend.close()


@pytest.fixture
def play_in_sandbox(play: Play, engine_runner: Runner, sandbox_image: str) -> Play:
    """As `play`, with sandboxes."""

    def start(**changes: Any) -> Played:
        return play(**{"using": engine_runner, "image": sandbox_image, **changes})

    return start


@pytest.fixture
def play(database: Database, repository: Repository, runner: Runner) -> Play:
    """Submits one job and admits it. `objects` are stored with it; `using` is another runner."""
    made = 0

    def start(*, using: Runner | None = None, objects: tuple[bytes, ...] = (), **changes: Any) -> Played:
        nonlocal made
        made += 1
        values: dict[str, Any] = {
            "key": "job",
            "source": SourceRef(kind="git", location=str(repository.path)),
            "base_commit": repository.commit,
            "base_tree": repository.tree,
            "issue": "add subtracts",
            "image": NO_IMAGE,
            "image_name": "sandbox-python",
            "model": "replay:x",
            "tests": Tests(command=PYTEST, timeout_seconds=60),
        }
        with submission(database) as submitted:
            for data in objects:
                submitted.put_object("acceptance", data)
            submitted.add(JobSpec.model_validate({**values, **changes}))
            submitted.finish(BatchSpec(name=f"batch-{made}"))
        offer = admit_jobs(database, capacity=1000)[0]
        return Played(database, using or runner, offer, job_id=find_job(database, f"batch-{made}/job").id)

    return start
