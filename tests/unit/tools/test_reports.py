"""JUnit reports: ids, outcomes, and everything a hostile program can write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runners.reports import MAX_CASES, Report, outcome_of, read_report


def report(data: str | bytes, *files: str) -> Report:
    return read_report(data.encode() if isinstance(data, str) else data, lambda: files)


def pytest_suite(*cases: str, attributes: str = "") -> str:
    suite = f'<testsuite name="pytest" {attributes}>{"".join(cases)}</testsuite>'
    return f'<testsuites name="pytest tests">{suite}</testsuites>'


def test_pytest_ids_are_found_by_the_file_of_the_tree() -> None:
    seen = report(
        pytest_suite(
            '<testcase classname="tests.test_nested" name="test_a[1-x.y]"/>',
            '<testcase classname="tests.test_nested.TestX.TestY" name="test_b"/>',
            '<testcase classname="tests.v1.2.test_dots" name="test_c"/>',
            '<testcase classname="test_top" name="test_d"/>',
            '<testcase classname="tests.made_at_run_time" name="test_e"/>',
            '<testcase classname="docs.usage.rst" name="usage.rst"/>',
        ),
        "tests/test_nested.py",
        "tests/v1.2/test_dots.py",
        "test_top.py",
        "docs/usage.rst",
        "tests/__init__.py",
    )
    assert list(seen.tests) == [
        "tests/test_nested.py::test_a[1-x.y]",
        "tests/test_nested.py::TestX::TestY::test_b",
        "tests/v1.2/test_dots.py::test_c",
        "test_top.py::test_d",
        "tests.made_at_run_time::test_e",
        "docs/usage.rst::usage.rst",
    ]


def test_ids_of_a_pytest_that_ran_in_a_folder_start_at_that_folder() -> None:
    seen = report(
        pytest_suite('<testcase classname="tests.test_x.TestX" name="test_a"/>'), "packages/core/tests/test_x.py"
    )
    assert list(seen.tests) == ["tests/test_x.py::TestX::test_a"]


def test_a_file_attribute_helps_where_the_tree_does_not() -> None:
    case = '<testcase classname="gen.test_x.TestX" name="test_a" file="gen/test_x.py"/>'
    assert list(report(pytest_suite(case)).tests) == ["gen/test_x.py::TestX::test_a"]
    lie = '<testcase classname="gen.test_x" name="test_a" file="other.py"/>'
    assert list(report(pytest_suite(lie)).tests) == ["gen.test_x::test_a"]


def test_a_collection_error_is_an_error_of_the_file() -> None:
    error = '<error message="collection failure">ImportError: no</error>'
    case = f'<testcase classname="" name="tests.test_x">{error}</testcase>'
    seen = report(pytest_suite(case, attributes='errors="1"'), "tests/test_x.py")
    assert seen.tests == {"tests/test_x.py": "error"}
    assert seen.messages == {"tests/test_x.py": "collection failure"}


def test_other_producers_keep_class_name_and_name() -> None:
    xml = '<testsuite name="com.acme.AppTest"><testcase classname="com.acme.AppTest" name="adds"/></testsuite>'
    assert report(xml, "com/acme/AppTest.py").tests == {"com.acme.AppTest::adds": "passed"}


def test_outcomes_are_counted_from_the_cases() -> None:
    seen = report(
        pytest_suite(
            '<testcase classname="t" name="ok"><system-out>noise</system-out></testcase>',
            '<testcase classname="t" name="bad"><failure message="assert 1 == 2">trace</failure></testcase>',
            '<testcase classname="t" name="err"><error>boom\nat line 3</error></testcase>',
            '<testcase classname="t" name="skip"><skipped type="pytest.xfail"/></testcase>',
            attributes='tests="99" failures="1" errors="1"',
        ),
        "t.py",
    )
    assert seen.tests == {"t.py::ok": "passed", "t.py::bad": "failed", "t.py::err": "error", "t.py::skip": "skipped"}
    assert seen.messages == {"t.py::bad": "assert 1 == 2", "t.py::err": "boom\nat line 3"}
    assert (seen.count("passed"), seen.count("failed", "error"), seen.count("skipped")) == (1, 2, 1)


def test_the_worst_of_several_outcomes_counts() -> None:
    bad = '<testcase classname="t" name="a"><failure message="first"/></testcase>'
    good = '<testcase classname="t" name="a"/>'
    for cases in ((bad, good), (good, bad), (good, bad, good)):
        assert report(pytest_suite(*cases), "t.py").tests == {"t.py::a": "failed"}
    both = '<testcase classname="t" name="a"><failure message="f"/><error message="teardown"/></testcase>'
    assert report(pytest_suite(both), "t.py").messages == {"t.py::a": "teardown"}


def test_what_is_inside_a_case_s_output_is_no_outcome() -> None:
    case = '<testcase classname="t" name="a"><failure><skipped/></failure></testcase>'
    assert report(pytest_suite(case), "t.py").tests == {"t.py::a": "failed"}
    hidden = '<testcase classname="t" name="a"><properties><failure/></properties></testcase>'
    assert report(pytest_suite(hidden), "t.py").tests == {"t.py::a": "passed"}


BOMB = '<!DOCTYPE x [<!ENTITY a "{}">]><testsuite name="pytest">&a;</testsuite>'.format("a" * 100)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not xml",
        b"<testsuite>",
        b"\x00\xff\xfe",
        b'<?xml version="1.0" encoding="no-such-code"?><testsuite/>',
        b"<html/>",
        b'<testsuite><testcase name="a"><testcase name="b"/></testcase></testsuite>',
        b'<testsuite><testcase name="a"><testsuite/></testcase></testsuite>',
        b'<testsuite failures="2"><testcase name="a"><failure/></testcase></testsuite>',
        b'<testsuites><testsuite errors="1"/>'
        b'<testsuite><testcase name="a"><error/></testcase></testsuite></testsuites>',
        BOMB.encode(),
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite/>',
        b"<testsuite>" + b"<a>" * 100 + b"</a>" * 100 + b"</testsuite>",
        b"<testsuite>" + b'<testcase name="a"/>' * (MAX_CASES + 1) + b"</testsuite>",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_no_report_is_malformed(data: bytes) -> None:
    seen = report(data)
    assert (seen.status, seen.tests) == ("malformed", {})
    assert seen.remark


def test_a_report_that_is_too_big_is_not_parsed() -> None:
    seen = read_report(b"<testsuite/>" * 10, tuple, max_bytes=100)
    assert (seen.status, seen.tests) == ("too_big", {})


def test_no_tests_is_a_good_report_of_nothing() -> None:
    assert report(pytest_suite(attributes='tests="100"')) == Report("ok")


def test_ids_and_messages_are_bounded() -> None:
    case = f'<testcase classname="t" name="{"n" * 9_000}"><failure message="{"m" * 9_000}"/></testcase>'
    seen = report(pytest_suite(case), "t.py")
    (test,) = seen.tests
    assert len(test) < 2_100
    assert len(seen.messages[test]) == 500


def test_namespaces_do_not_matter() -> None:
    xml = '<j:testsuite xmlns:j="urn:x"><j:testcase classname="c" name="n"><j:failure/></j:testcase></j:testsuite>'
    assert report(xml).tests == {"c::n": "failed"}


def test_a_node_id_is_found_in_a_report_without_pytest_s_mark() -> None:
    tests = report(
        '<testsuite name="mine"><testcase classname="tests.test_x.TestX" name="test_a[b::c]"/></testsuite>'
    ).tests
    assert tests == {"tests.test_x.TestX::test_a[b::c]": "passed"}
    assert outcome_of(tests, "tests/test_x.py::TestX::test_a[b::c]") == "passed"
    assert outcome_of(tests, "tests.test_x.TestX::test_a[b::c]") == "passed"
    assert outcome_of(tests, "tests/test_x.py::test_a[b::c]") is None
    assert outcome_of(tests, "tests/test_x.py") is None


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_the_ids_are_those_that_pytest_itself_collects(tmp_path: Path, family: str) -> None:
    files = {
        "tests/test_a.py": "import pytest\n"
        "class TestX:\n"
        "    class TestY:\n        def test_in(self): pass\n"
        "    @pytest.mark.parametrize('v', ['a.b', 'a/b::c', 'ü', '\\n'])\n"
        "    def test_p(self, v): assert v\n"
        "class TestChild(TestX): pass\n"
        "def test_fails(): assert 0\n"
        "@pytest.fixture\ndef bad():\n    yield\n    raise RuntimeError('teardown')\n"
        "def test_both(bad): assert 0\n"
        "@pytest.mark.xfail\ndef test_x(): assert 0\n",
        "sub/test_a.py": "def test_other(): pass\n",
        "sub/test_broken.py": "import nothing_of_that_name\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    option = ["--continue-on-collection-errors", f"-ojunit_family={family}", "--junitxml=report.xml"]
    subprocess.run([*command, *option], cwd=tmp_path, capture_output=True, check=False)
    collected = subprocess.run([*command, "--collect-only"], cwd=tmp_path, capture_output=True, check=False, text=True)
    ids = {line for line in collected.stdout.splitlines() if "::" in line and not line.startswith("ERROR")}
    assert len(ids) == 14
    seen = report((tmp_path / "report.xml").read_bytes(), *files)
    assert seen.status == "ok"
    assert set(seen.tests) == ids | {"sub/test_broken.py"}
    assert seen.tests["tests/test_a.py::test_both"] == "error"
    assert seen.tests["tests/test_a.py::test_fails"] == "failed"
    assert seen.tests["tests/test_a.py::test_x"] == "skipped"
