"""One job that is well-formed: what its words stand for, such that any worker on any host can do it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ledger.errors import BadInput
from ledger.records.job import Acceptance, JobSpec, Network, Tests
from ledger.records.publish import Publish
from patchyard.batchfile.credentials import published_credential, source_credential
from patchyard.batchfile.instances import fill
from patchyard.batchfile.located import line_of
from patchyard.batchfile.lookups import Found, FoundBase, Lookups, WrongReplay
from patchyard.batchfile.problems import Problems, quoted
from patchyard.batchfile.read import BatchFile, Entry
from patchyard.batchfile.stated import StatedAcceptance, StatedJob, for_all
from policy.ceilings import limits_of
from policy.network import Ceiling
from policy.paths import check_glob
from runners.effects.target import complete_publish
from runners.workspace.errors import CommitMissing

_MODELS = ("replay",)
_LATER_MODELS = ("openai", "anthropic")
_LATER_STRATEGIES = ("best_of", "plan_patch_review")
_LATER = "not available in this version"
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _words(problem: BadInput) -> str:
    """What is wrong with what was looked up, and with which part of it."""
    return f"{problem.where}: {problem.what}" if problem.where else problem.what


def check_pattern(glob: str) -> None:
    """Raises BadInput if `glob` cannot mean paths of a repository."""
    try:
        if not glob.strip() or ".." in glob.split("/"):
            raise BadInput("it means nothing in the repository", remedy="write it as src/**")
        check_glob(glob)
    except BadInput as problem:
        raise BadInput(f"the pattern {quoted(glob)}: {problem.what}", remedy=problem.remedy) from None


def place(batch: BatchFile, entry: Entry, loc: Sequence[str | int]) -> str:
    """Where a field stands: in the job, else in the defaults, else where the job starts."""
    line, found = line_of(entry.stated, loc, entry.stated.line)
    default_line, in_defaults = line_of(batch.defaults, loc, batch.defaults.line)
    return batch.default_where(default_line) if in_defaults > found else entry.where(line)


class Resolution:
    """One job that is well-formed: what its words stand for."""

    def __init__(
        self,
        batch: BatchFile,
        entry: Entry,
        job: StatedJob,
        lookups: Lookups,
        problems: Problems,
        ceiling: Ceiling,
    ) -> None:
        """`ceiling` is what jobs of this cluster may ask for of a network."""
        self._ceiling = ceiling
        self._batch, self._entry, self._job = batch, entry, job
        self._lookups, self._problems = lookups, problems
        self._names = {"id": job.id, "batch": batch.spec.name}
        self._wrong = False

    def spec(self) -> JobSpec | None:
        """The job resolved, or None with its mistakes reported."""
        job = self._job
        self._check_choices()
        model, replay = self._model()
        image = self._look_up(("image",), lambda: self._lookups.image(job.image))
        network = self._network()
        tests = self._tests()
        acceptance = self._acceptance()
        base = self._base()
        if base is not None and acceptance is not None and self._entry.test_patch and not self._wrong:
            acceptance = self._with_test_patch(acceptance, base, self._entry.test_patch)
        publish = None if base is None else self._publish(base)
        if self._wrong or base is None or image is None or model is None or publish is None:
            return None
        spec = JobSpec(
            key=job.id,
            source=base.source,
            base_commit=base.commit,
            base_tree=base.tree,
            issue=job.issue,
            image=image.digest,
            image_name=image.name,
            model=model,
            model_options=job.model_options,
            replay_sha256=replay,
            budget=job.budget,
            tests=tests,
            acceptance=acceptance,
            limits=job.limits,
            network=network,
            writable=job.writable,
            protected=job.protected,
            approvals=job.approvals,
            publish=publish,
            priority=job.priority,
        )
        return self._storable(spec)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _report(self, what: str, loc: Sequence[str | int], remedy: str) -> None:
        self._wrong = True
        self._problems.add(BadInput(what, where=place(self._batch, self._entry, loc), remedy=remedy))

    def _look_up(self, loc: Sequence[str | int], look_up: Callable[[], Found]) -> Found | None:
        """The result, or None with the mistake reported at `loc`."""
        try:
            return look_up()
        except WrongReplay as problem:  # it knows its own file and line
            self._wrong = True
            self._problems.add(problem)
        except BadInput as problem:
            self._report(_words(problem), loc, problem.remedy)
        return None

    def _refused(self, loc: Sequence[str | int], problem: BadInput | None) -> bool:
        """Whether there is a mistake; it is reported at `loc`."""
        if problem is not None:
            self._report(_words(problem), loc, problem.remedy)
        return problem is not None

    def _filled(self, text: str, field: str, loc: Sequence[str | int]) -> str | None:
        return self._look_up(loc, lambda: fill(text, self._names, field, ""))

    def _base(self) -> FoundBase | None:
        repo = self._filled(self._job.repo, "repo", ("repo",))
        if repo is None or self._refused(("repo",), source_credential(repo, "repo")):
            return None
        try:
            return self._lookups.base(repo, self._job.base)
        except CommitMissing as problem:
            self._report(_words(problem), ("base",), problem.remedy)
        except BadInput as problem:
            self._report(_words(problem), ("repo",), problem.remedy)
        return None

    def _publish(self, base: FoundBase) -> Publish | None:
        """Where the patch goes, complete; a remote that is a relative path starts at the batch file."""
        stated = self._job.publish
        for field, address in (("remote", stated.remote), ("api", stated.api)):
            if self._refused(("publish", field), published_credential(address, f"publish.{field}")):
                return None
        if stated.remote is not None and ":" not in stated.remote.partition("/")[0]:
            stated = stated.model_copy(update={"remote": str(self._batch.folder / stated.remote)})
        batch, job = self._batch.spec.name, self._job.id
        return self._look_up(("publish",), lambda: complete_publish(stated, base.source, batch=batch, job=job))

    def _check_choices(self) -> None:
        job = self._job
        if job.strategy != "single":
            name = next(iter(job.strategy), "") if isinstance(job.strategy, dict) else str(job.strategy)
            self._refuse_choice("strategy", ("strategy",), name, _LATER_STRATEGIES, "single")
        if job.approvals == "ask":
            self._refuse_choice("approvals", ("approvals",), "ask", ("ask",), "deny or allow")
        for name, globs in (("writable", job.writable), ("protected", job.protected)):
            for index, glob in enumerate(globs):
                self._look_up((name, index), lambda glob=glob: check_pattern(glob))  # type: ignore[misc]
        self._look_up(("limits",), lambda: limits_of(job.limits))

    def _refuse_choice(self, field: str, loc: Sequence[str], chosen: str, later: Sequence[str], instead: str) -> None:
        name = chosen.partition(":")[0]
        what = f"{field} {quoted(chosen)} is {_LATER if name in later else 'unknown'}"
        self._report(what, loc, f"write {instead}, or remove the field")

    def _model(self) -> tuple[str | None, str | None]:
        """The model's name and, for a replay, its SHA-256."""
        model = self._filled(self._job.model, "model", ("model",))
        if model is None:
            return None, None
        kind, colon, rest = model.partition(":")
        if kind in _LATER_MODELS:
            self._report(f"the model {quoted(model)} is {_LATER}", ("model",), "use replay:PATH")
        elif kind not in _MODELS or not colon:
            self._report(f"unknown model {quoted(model)}", ("model",), "use replay:PATH")
        elif not rest:
            self._report("the model names no replay file", ("model",), "write replay:PATH")
        else:
            file = self._batch.folder / rest
            shown = str(Path(self._batch.file).parent / rest)
            sha256 = self._look_up(("model",), lambda: self._lookups.replay(file, shown))
            return model, sha256
        return None, None

    def _network(self) -> Network | None:
        """What the job's commands may reach, each in its canonical form, if the ceiling permits all of it."""
        stated = self._job.network
        if stated is None:
            return None
        permitted = []
        for index, text in enumerate(stated.allow):
            try:
                permitted.append(self._ceiling.permit(text))
            except BadInput as problem:
                self._report(
                    f"network.allow {quoted(text)}: {problem.what}", ("network", "allow", index), problem.remedy
                )
        return stated.model_copy(update={"allow": tuple(dict.fromkeys(permitted))})

    def _tests(self) -> Tests | None:
        tests = self._job.tests
        if tests is not None:
            self._check_report(tests.report, ("tests", "report"))
        elif self._job.acceptance is None:
            what = "neither tests nor acceptance is given: nothing could verify a patch"
            self._report(what, (), "give tests.command, or acceptance with fail_to_pass")
        return tests

    def _check_report(self, report: str, loc: Sequence[str | int]) -> None:
        if not report.startswith("/") or ".." in report.split("/") or report.endswith("/"):
            what = f"{'.'.join(map(str, loc))} {quoted(report)} is not an absolute path of a file"
            self._report(what, loc, "write it as /tmp/report.xml")

    def _acceptance(self) -> Acceptance | None:
        """The acceptance with its files; what it leaves out is as in the job's tests."""
        stated, tests = self._job.acceptance, self._job.tests
        if stated is None:
            if self._entry.test_patch:
                what = "test_patch without FAIL_TO_PASS: nothing says which tests must pass"
                self._report(what, ("id",), "add FAIL_TO_PASS, or remove test_patch")
            return None
        run = tests.model_dump() if tests else {}
        run |= stated.model_dump(include={"command", "report", "timeout_seconds"}, exclude_none=True)
        if "command" not in run:
            what = "acceptance.command is missing, and there are no tests to take it from"
            if not self._entry.foreign:
                self._report(what, ("acceptance",), "give acceptance.command")
            else:
                self._wrong, where = True, place(self._batch, self._entry, ("acceptance",))
                self._problems.add_once(what, BadInput(what, where=where, remedy=for_all("tests")))
            return None
        both = sorted(set(stated.fail_to_pass) & set(stated.pass_to_pass))
        if both:
            what = f"{quoted(both[0])} is in fail_to_pass and in pass_to_pass"
            self._report(what, ("acceptance", "pass_to_pass"), "a test is red on the base or it is not")
        acceptance = Acceptance(
            **run,
            files_sha256=self._acceptance_files(stated),
            fail_to_pass=stated.fail_to_pass,
            pass_to_pass=stated.pass_to_pass,
            red_on_base=stated.red_on_base,
        )
        self._check_report(acceptance.report, ("acceptance", "report"))
        return acceptance

    def _acceptance_files(self, stated: StatedAcceptance) -> str | None:
        loc = ("acceptance", "files")
        if stated.files is None:
            return None
        files = self._filled(stated.files, "acceptance.files", loc)
        if files is None:
            return None
        if ".." in Path(files).parts:
            self._report(f"acceptance.files {quoted(files)} has '..' in it", loc, "keep them below the batch file")
            return None
        return self._look_up(loc, lambda: self._lookups.overlay(self._batch.folder / files))

    def _with_test_patch(self, acceptance: Acceptance, base: FoundBase, patch: str) -> Acceptance | None:
        if acceptance.files_sha256 is not None:
            self._report("both acceptance.files and test_patch", ("acceptance", "files"), "remove one of the two")
            return None
        sha256 = self._look_up(("id",), lambda: self._lookups.patched_files(base, patch))
        return acceptance.model_copy(update={"files_sha256": sha256})

    def _storable(self, spec: JobSpec) -> JobSpec | None:
        if _NUL.search(spec.model_dump_json()):
            self._report("a text of the job has a NUL character", (), "remove it")
            return None
        return spec
