"""The jobs of the ledger's benchmark: as large as real ones, about nothing."""

from __future__ import annotations

from ledger.records.budget import Budget
from ledger.records.job import Acceptance, JobSpec, Tests
from ledger.records.source import SourceRef

_PYTEST = ("python3", "-m", "pytest", "-q", "--junitxml=/tmp/report.xml")
_ISSUE = (
    "Links in sub-folders are resolved from the root instead of from the document that they stand in. A page under "
    "guide/ that links to intro.md is reported as broken although guide/intro.md is there; links that begin with a "
    "slash work. Expected: a relative link is looked up beside its document, an absolute one from the root."
)


def job_spec(key: str, turns: int) -> JobSpec:
    """A job that ends after so many decide steps."""
    return JobSpec(
        key=key,
        source=SourceRef(kind="git", location="/srv/repositories/linkcheck.git"),
        base_commit="1" * 40,
        base_tree="2" * 40,
        issue=_ISSUE,
        image="sha256:" + "a" * 64,
        image_name="sandbox-python",
        model="noop:none",
        model_options={"turns": turns},
        budget=Budget(steps=turns, input_tokens=10**9, output_tokens=10**9, cost_usd=10_000, wall_seconds=36_000),
        tests=Tests(command=_PYTEST),
        acceptance=Acceptance(
            files_sha256="b" * 64,
            red_on_base=False,
            command=_PYTEST,
            fail_to_pass=("tests/test_nested.py::test_nested_missing", "tests/test_nested.py::test_nested_found"),
            pass_to_pass=tuple(f"tests/test_links.py::test_link_{number}" for number in range(8)),
        ),
        writable=("src/**",),
        protected=("tests/**", "pyproject.toml"),
    )
