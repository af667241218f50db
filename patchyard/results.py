"""The results of a batch in the forms that people and programs take them.

One row a job, in the order of the batch, read by a server-side cursor: a batch of any size takes the memory of a row.
Names and shapes of a row are a public contract; additions are free, a change is not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ledger.connect import Database
from ledger.objects import get_object
from ledger.reads import BatchRow, ResultRow, iter_results
from ledger.records.budget import RESOURCES, Amounts
from ledger.records.job import TERMINAL
from patchyard.printable import printable

MODEL_NAME = "patchyard"
_ERROR_STATES = ("needs_attention",)
_SKIPPED_STATES = ("cancelled",)


def result_rows(db: Database, batch: BatchRow) -> Iterator[ResultRow]:
    """The ledger's rows of a batch."""
    return iter_results(db, batch.id)


def patch_of(db: Database, row: ResultRow) -> bytes | None:
    """The verified patch of a job, if it has one."""
    return get_object(db, row.patch_sha256) if row.patch_sha256 else None


def public_row(row: ResultRow, patch: bytes | None) -> dict[str, Any]:
    """A row of `results --format jsonl`. A patch that is no UTF-8 text stands in `patch_base64` instead of `patch`."""
    verdict = row.verdict if row.verdict and row.verdict.get("on") == "head" else {}
    candidate = verdict.get("candidate") or {}
    text = _text(patch)
    plain = {
        "batch": row.batch,
        "job": row.job,
        "state": row.state,
        "reason": row.reason,
        "verified": row.reason == "verified",
        "base": row.base,
        "tree": row.tree,
        "patch_sha256": row.patch_sha256,
        "patch": text,
        "files_changed": row.files_changed,
        "tests": {name: candidate.get(name) for name in ("discovered", "passed", "failed", "skipped")},
        "acceptance": {
            name: {outcome: (verdict.get(name) or {}).get(outcome) for outcome in ("passed", "failed")}
            for name in ("fail_to_pass", "pass_to_pass")
        },
        "granted": amounts_row(row.granted),
        "spent": amounts_row(row.spent),
        "agents": row.agents,
        "steps": row.steps,
        "attempts": row.attempts,
        "submitted_at": _time(row.submitted_at),
        "started_at": _time(row.started_at),
        "finished_at": _time(row.finished_at),
        "seconds": {
            "queued": row.queued_ms / 1000,
            "deciding": row.deciding_ms / 1000,
            "sandbox": row.sandbox_ms / 1000,
            "verifying": row.verifying_ms / 1000,
        },
        "published": {name: row.published.get(name) for name in ("to", "ref", "url")} if row.published else None,
    }
    if patch is not None and text is None:
        plain["patch_base64"] = base64.b64encode(patch).decode()
    return plain


def amounts_row(amounts: Amounts) -> dict[str, int]:
    """Amounts by the resources' public names."""
    return dict(zip(RESOURCES, amounts.as_tuple(), strict=True))


def not_predictable(patch: bytes | None) -> str | None:
    """Why this patch has no place in a prediction, which is text; None if it has.

    Patches are text since files that are not go into binary hunks; those that were made before that need not be.
    """
    if patch is None or _text(patch) is not None:
        return None
    return "its patch has lines that are no UTF-8, as a prediction must be"


def prediction(row: ResultRow, patch: bytes | None) -> dict[str, str]:
    """A row in the form that SWE-bench's harness evaluates; a job without a verified patch has an empty one, and so has
    one whose patch is `not_predictable`."""
    model = row.model.partition(":")[0] if row.model.startswith("replay:") else row.model
    return {
        "instance_id": row.job,
        "model_name_or_path": f"{MODEL_NAME}-{model}",
        "model_patch": _text(patch) or "",
    }


def json_lines(rows: Iterator[ResultRow], of: Callable[[ResultRow], Any]) -> Iterator[str]:
    """One line of JSON a row, with its newline."""
    for row in rows:
        yield json.dumps(of(row), ensure_ascii=False) + "\n"


def junit(batch: str, counts: dict[str, int], rows: Iterator[ResultRow]) -> Iterator[str]:
    """A JUnit report with a test case a job; `counts` are the batch's jobs by state, for the totals of its head."""
    total = sum(counts.values())
    errors = sum(counts.get(state, 0) for state in _ERROR_STATES)
    skipped = sum(n for state, n in counts.items() if state in _SKIPPED_STATES or state not in TERMINAL)
    failures = total - errors - skipped - counts.get("completed", 0)
    yield '<?xml version="1.0" encoding="utf-8"?>\n'
    yield (
        f'<testsuites><testsuite name={_attribute(batch)} tests="{total}" failures="{failures}" errors="{errors}" '
        f'skipped="{skipped}">\n'
    )
    for row in rows:
        yield _test_case(batch, row)
    yield "</testsuite></testsuites>\n"


def _test_case(batch: str, row: ResultRow) -> str:
    seconds = (row.finished_at - row.started_at).total_seconds() if row.finished_at and row.started_at else 0.0
    head = f'<testcase classname={_attribute(batch)} name={_attribute(row.job)} time="{seconds:.3f}"'
    if row.state == "completed":
        return head + "/>\n"
    kind = "error" if row.state in _ERROR_STATES else "failure"
    if row.state in _SKIPPED_STATES or row.state not in TERMINAL:
        kind = "skipped"
    why: str = row.reason or row.state
    if row.verdict and row.verdict.get("reason") == row.reason:  # else the verdict is of the base, and not the end
        why = f"{why}: {row.verdict.get('explanation', '')}"
    message = f" type={_attribute(row.reason or row.state)} message={_attribute(printable(why, 500))}"
    if kind == "skipped":
        message = f" message={_attribute(row.reason or row.state)}"
        return f"{head}><skipped{message}/></testcase>\n"
    return f"{head}><{kind}{message}>{escape(printable(why, 2000))}</{kind}></testcase>\n"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def _text(patch: bytes | None) -> str | None:
    try:
        return None if patch is None else patch.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _time(value: Any) -> str | None:
    return None if value is None else value.isoformat()
