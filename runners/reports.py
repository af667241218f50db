"""JUnit reports read as what they are: files written by code that nobody trusts.

A report comes out of a sandbox in which the code under test could write anything. So it is bounded, parsed without
entities and without building a tree, and never believed in its sums: outcomes are counted from the test cases, and a
report that admits more failures in its sums than its cases show is malformed. What a report can still do is lie
consistently; that is why protected paths and hidden acceptance tests exist.

Test ids are pytest's node ids where the report is pytest's, `classname::name` otherwise. Newer pytest writes no file
names, so a node id is found by looking up the dotted class name among the files of the tree. A test that is reported
more than once counts with its worst outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from ledger.errors import Permanent
from ledger.records.verdict import TestOutcome

MAX_REPORT_BYTES = 16 * 1024 * 1024
MAX_CASES = 200_000
MAX_DEPTH = 64
ID_CHARS = 2_000
MESSAGE_CHARS = 500
_WORSE: dict[TestOutcome, int] = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}
_OUTCOME_OF: dict[str, TestOutcome] = {"failure": "failed", "error": "error", "skipped": "skipped"}


@dataclass(frozen=True)
class Report:
    """A report as read. `tests` maps ids to outcomes, `messages` the ids that did not pass to a short message."""

    status: Literal["ok", "malformed", "too_big"]
    remark: str = ""
    tests: dict[str, TestOutcome] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)

    def count(self, *outcomes: TestOutcome) -> int:
        """How many tests ended so."""
        return sum(1 for outcome in self.tests.values() if outcome in outcomes)


class _Refused(Permanent):
    """This is no usable report."""


def read_report(data: bytes, files: Callable[[], Iterable[str]], *, max_bytes: int = MAX_REPORT_BYTES) -> Report:
    """The report in `data`. `files` gives the paths of the tree that was tested; it is called only if needed."""
    if len(data) > max_bytes:
        return Report("too_big", f"the report has {len(data)} bytes, more than {max_bytes}")
    reader = _Reader()
    parser = DefusedXMLParser(target=reader, forbid_dtd=True)
    try:
        parser.feed(data)
        parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError, _Refused) as wrong:
        return Report("malformed", f"{type(wrong).__name__}: {str(wrong)[:200]}")
    return _with_ids(reader, files)


@dataclass
class _Case:
    classname: str
    name: str
    file: str
    outcome: TestOutcome = "passed"
    message: str = ""


@dataclass
class _Reader:
    """The target of the XML parser: keeps cases and sums, and nothing else."""

    cases: list[_Case] = field(default_factory=list)
    from_pytest: bool = False
    _depth: int = 0
    _case: _Case | None = None
    _case_depth: int = 0
    _text: list[str] | None = None
    _text_chars: int = 0
    _suites: list[tuple[int, int, int]] = field(default_factory=list)
    _shown: int = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        name = _local(tag)
        if self._depth > MAX_DEPTH:
            raise _Refused("elements are nested too deeply")
        if self._depth == 1 and name not in ("testsuite", "testsuites"):
            raise _Refused(f"the root element is {name[:50]!r}")
        if name in ("testsuite", "testsuites"):
            if self._case is not None:
                raise _Refused("a test suite inside a test case")
            self._start_suite(attributes)
        elif name == "testcase":
            self._start_case(attributes)
        elif self._case is not None and name in _OUTCOME_OF and self._depth == self._case_depth + 1:
            self._take(self._case, _OUTCOME_OF[name], attributes.get("message", ""))

    def data(self, text: str) -> None:
        if self._text is not None and self._text_chars < MESSAGE_CHARS:
            self._text.append(text[:MESSAGE_CHARS])
            self._text_chars += len(text)

    def end(self, tag: str) -> None:
        if self._case is not None and self._depth == self._case_depth:
            self._case = None
        elif self._case is not None and self._text is not None and self._depth == self._case_depth + 1:
            self._case.message = self._case.message or "".join(self._text).strip()[:MESSAGE_CHARS]
            self._text = None
        elif self._suites and self._suites[-1][0] == self._depth:
            self._end_suite()
        self._depth -= 1

    def close(self) -> None:
        """Called by the parser at the end of the document."""

    def _start_suite(self, attributes: dict[str, str]) -> None:
        self.from_pytest |= attributes.get("name") in ("pytest", "pytest tests")
        admitted = sum(_number(attributes.get(key)) for key in ("failures", "errors"))
        self._suites.append((self._depth, admitted, self._shown))

    def _end_suite(self) -> None:
        _, admitted, shown_before = self._suites.pop()
        shown = self._shown - shown_before
        if admitted > shown:
            raise _Refused(f"a suite counts {admitted} failures and errors and shows {shown}")

    def _start_case(self, attributes: dict[str, str]) -> None:
        if self._case is not None:
            raise _Refused("a test case inside a test case")
        if len(self.cases) >= MAX_CASES:
            raise _Refused(f"more than {MAX_CASES} test cases")
        classname, name, file = (attributes.get(key, "")[:ID_CHARS] for key in ("classname", "name", "file"))
        self._case, self._case_depth = _Case(classname, name, file), self._depth
        self.cases.append(self._case)

    def _take(self, case: _Case, outcome: TestOutcome, message: str) -> None:
        self._shown += outcome in ("failed", "error")
        if _WORSE[outcome] > _WORSE[case.outcome]:
            case.outcome, case.message = outcome, message[:MESSAGE_CHARS]
            self._text, self._text_chars = ([], 0) if not message else (None, 0)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def _with_ids(reader: _Reader, files: Callable[[], Iterable[str]]) -> Report:
    report = Report("ok")
    nodes = _NodeIds(files() if reader.from_pytest and reader.cases else ())
    for case in reader.cases:
        test = nodes.id_of(case) if reader.from_pytest else _plain_id(case)
        if test not in report.tests or _WORSE[case.outcome] > _WORSE[report.tests[test]]:
            report.tests[test] = case.outcome
            if case.outcome in ("failed", "error"):
                report.messages[test] = case.message
    return report


class _NodeIds:
    """Finds the file of a dotted class name: as a path from the root, else as the end of a path.

    The latter is for a pytest whose root is a folder of the repository; its node ids start at that folder.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._exact: dict[str, str] = {}
        self._ends: dict[str, str] = {}
        for path in files:
            if path.endswith(".py"):
                self._exact[_dotted(path)] = path
                self._add_ends(path)
            else:
                self._exact.setdefault(_dotted(path), path)
        self._found: dict[str, tuple[str, list[str]] | None] = {}

    def _add_ends(self, path: str) -> None:
        _, slash, rest = path.partition("/")
        while slash:
            self._ends.setdefault(_dotted(rest), rest)
            _, slash, rest = rest.partition("/")

    def id_of(self, case: _Case) -> str:
        """pytest's node id of `case`."""
        whole = case.classname or case.name
        if whole not in self._found:
            self._found[whole] = self._find(whole)
        found = self._found[whole]
        if found is None and case.file and whole.startswith(_dotted(case.file)):
            rest = whole[len(_dotted(case.file)) :].strip(".")
            found = (case.file, rest.split(".") if rest else [])
        if found is None:
            return _plain_id(case)
        path, classes = found
        return "::".join([path, *classes, case.name] if case.classname else [path, *classes])

    def _find(self, dotted: str) -> tuple[str, list[str]] | None:
        for known in (self._exact, self._ends):
            parts = dotted.split(".")
            for end in range(len(parts), 0, -1):
                path = known.get(".".join(parts[:end]))
                if path is not None:
                    return path, parts[end:]
        return None


def _plain_id(case: _Case) -> str:
    return f"{case.classname}::{case.name}" if case.classname else case.name


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def outcome_of(tests: dict[str, TestOutcome], test: str) -> TestOutcome | None:
    """The outcome of `test`, None if the report does not name it.

    A pytest node id is found in a report without pytest's mark too, by the class name that pytest would have written.
    """
    if test in tests:
        return tests[test]
    path, _, rest = test.partition("::")
    if not rest:
        return None
    names, bracket, params = rest.partition("[")
    *classes, name = names.split("::")
    return tests.get(f"{'.'.join([_dotted(path), *classes])}::{name}{bracket}{params}")
